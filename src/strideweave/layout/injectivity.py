"""Whether two coordinates of a layout reach the same index: exact for every layout."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from math import gcd, prod

Leaves = tuple[tuple[int, int], ...]

_ENUMERATED = 4096
"""Up to this many coordinates, listing them is cheaper than arithmetic; above it nothing is ever listed."""


@lru_cache(maxsize=1024)
def is_injective(leaves: Leaves) -> bool:
    """Whether no two coordinates of these (extent, stride) leaves reach the same index."""
    modes = sorted(((n, d) for n, d in leaves if n > 1), key=lambda mode: (mode[1], mode[0]))
    if any(d == 0 for _, d in modes):
        return False
    spans = list(accumulate((n - 1) * d for n, d in modes))
    # Nested: every stride steps over all that the smaller ones reach.
    if all(d > span for (_, d), span in zip(modes[1:], spans, strict=False)):
        return True
    # Pigeonhole: more coordinates than indices, over the modes with the smallest strides.
    if any(
        count > span + 1
        for count, span in zip(accumulate((n for n, _ in modes), lambda a, b: a * b), spans, strict=True)
    ):
        return False
    if prod(n for n, _ in modes) <= _ENUMERATED:
        return not collides_by_enumeration(modes)
    return not collides_by_arithmetic(modes)


def collides_by_enumeration(modes: list[tuple[int, int]]) -> bool:
    """Whether two coordinates reach the same index, by listing every index."""
    reached = {0}
    count = 1
    for n, d in modes:
        reached = {base + c * d for base in reached for c in range(n)}
        count *= n
        if len(reached) < count:
            return True
    return False


def collides_by_arithmetic(modes: list[tuple[int, int]]) -> bool:
    """Whether two coordinates reach the same index, by searching for their difference.

    Two coordinates collide when their difference x, |x_j| < n_j, is not zero and sum(x_j * d_j) is. Fix the
    largest stride whose x_j is not zero, without loss of generality positive; the smaller strides must sum
    to -x_j * d_j. At each stride only the few x_j are tried that leave a sum within the reach of the strides
    below it, and a multiple of their greatest common divisor; the last two strides are decided at once.
    `modes` has positive strides in ascending order. The question is NP-hard in the rank: four or more
    overlapping modes of large extents, with strides that have no structure at all, can take minutes.
    """
    reach = [0, *accumulate((n - 1) * d for n, d in modes)]
    common = [0, *accumulate((d for _, d in modes), gcd)]
    failed: set[tuple[int, int]] = set()

    def sums_to(total: int, below: int) -> bool:
        """Whether the `below` smallest strides sum to `total`."""
        if below == 0:
            return total == 0
        if abs(total) > reach[below] or total % common[below]:
            return False
        if below == 1:
            return True  # within reach and a multiple of the one stride
        if (total, below) in failed:
            return False
        n, d = modes[below - 1]
        least = max(1 - n, -((reach[below - 1] - total) // d))
        most = min(n - 1, (reach[below - 1] + total) // d)
        # x must make total - x * d a multiple of g: one residue class modulo g / gcd(d, g).
        g = common[below - 1]
        step = g // gcd(d, g)
        first = (total // gcd(d, g)) * pow(d // gcd(d, g), -1, step) % step if step > 1 else 0
        start = least + (first - least) % step
        if any(sums_to(total - x * d, below - 1) for x in range(start, most + 1, step)):
            return True
        failed.add((total, below))
        return False

    for top in range(1, len(modes)):
        n, d = modes[top]
        step = common[top] // gcd(d, common[top])
        most = min(n - 1, reach[top] // d)
        if any(sums_to(-x * d, top) for x in range(step, most + 1, step)):
            return True
    return False
