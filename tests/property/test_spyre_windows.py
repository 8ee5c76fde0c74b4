"""The span function against enumeration: every address of an access is computed, one by one, and the ends compared.

Proves "exact for floor and Mod with any coefficient" (compiler.md, one span function) and facts-compiler.md j.1, j.2.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from strideweave.spyre.windows import access_window, coordinate_span_elems, largest_tile_window

A, B = (sympy.Symbol(name, integer=True, nonnegative=True) for name in "ab")


def value(expression, point):
    """The exact value at a point, by rational arithmetic."""
    if expression.is_Symbol:
        return point[expression]
    if expression.is_Rational:
        return Fraction(int(expression.p), int(expression.q))
    parts = [value(argument, point) for argument in expression.args]
    if expression.is_Add:
        return sum(parts)
    if expression.is_Mul:
        return math.prod(parts)
    return math.floor(parts[0]) if isinstance(expression, sympy.floor) else parts[0] % parts[1]


def addresses(coordinates, size, ranges, starts):
    """Every linear address that the access touches."""
    steps = [math.prod(size[k + 1 :]) for k in range(len(size))]
    points = itertools.product(*(range(starts.get(s, 0), starts.get(s, 0) + ranges[s]) for s in (A, B)))
    return [
        int(sum(value(c, {A: a, B: b}) * step for c, step in zip(coordinates, steps, strict=True))) for a, b in points
    ]


def extent_of(coordinates, size, ranges, starts=None):
    touched = addresses(coordinates, size, ranges, starts or {})
    return max(touched) - min(touched) + 1


@st.composite
def terms(draw, symbol):
    scale = draw(st.integers(1, 5))
    offset = draw(st.integers(0, 6))
    modulus = draw(st.sampled_from([2, 3, 4, 5, 8, 16]))
    linear = scale * symbol + offset
    kind = draw(st.sampled_from(["linear", "floor", "mod", "floor of mod", "mod of floor", "two mods", "backwards"]))
    return {
        "linear": linear,
        "floor": sympy.floor(linear / sympy.Integer(modulus)),
        "mod": sympy.Mod(linear, modulus),
        "floor of mod": sympy.floor(sympy.Mod(linear, 3 * modulus) / sympy.Integer(modulus)),
        "mod of floor": sympy.Mod(sympy.floor(linear / sympy.Integer(2)), modulus),
        "two mods": sympy.Mod(symbol, modulus) + 2 * sympy.Mod(symbol, modulus + 1),
        "backwards": 60 - symbol,
    }[kind]


@st.composite
def accesses(draw):
    coordinates = [
        draw(terms(A)) + draw(terms(B)),
        draw(terms(draw(st.sampled_from([A, B])))),
        sympy.Integer(draw(st.integers(0, 3))),
        draw(terms(A)),
    ]
    size = tuple(draw(st.integers(1, 40)) for _ in coordinates)
    return coordinates, size


ranges = st.fixed_dictionaries({A: st.integers(1, 40), B: st.integers(1, 9)})


@given(accesses(), ranges, st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_window_equals_enumeration(access, extents, start):
    coordinates, size = access
    starts = {A: start}
    found = access_window(coordinates, size, 2, extents, starts=starts)
    assert found is not None
    assert found.nbytes == 2 * (extent_of(coordinates, size, extents, starts) - 1) + 2
    assert found.min_byte == 2 * min(addresses(coordinates, size, extents, starts))


@given(accesses(), ranges, st.integers(1, 6), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_largest_window_over_tiles_equals_enumeration(access, extents, along_a, along_b):
    coordinates, size = access
    found = largest_tile_window(coordinates, size, 1, extents, {A: along_a, B: along_b})
    begins = itertools.product(range(along_a), range(along_b))
    wanted = max(extent_of(coordinates, size, extents, {A: i * extents[A], B: j * extents[B]}) for i, j in begins)
    assert found == wanted


@given(st.integers(2, 12), st.integers(1, 12), st.sampled_from([4, 8, 16]), ranges)
@settings(max_examples=50, deadline=None)
def test_flat_reshapes_are_exact_where_they_are_enumerable(row, step, modulus, extents):
    flat = row * A + step * B
    coordinates = [sympy.floor(flat / sympy.Integer(modulus)), sympy.Mod(flat, modulus)]
    found = access_window(coordinates, (1000, modulus), 4, extents)
    assert found is not None
    assert found.nbytes == 4 * extent_of(coordinates, (1000, modulus), extents)


@given(accesses(), ranges)
@settings(max_examples=100, deadline=None)
def test_bound_of_the_seed_is_never_below_what_its_coordinate_takes(access, extents):
    coordinates, _ = access
    for coordinate in coordinates:
        bound = coordinate_span_elems(coordinate, extents, {})
        # With two Mods of one symbol it may be: its test points are 0, the end and one for each modulus.
        if bound is not None and len(coordinate.atoms(sympy.Mod)) < 2:
            assert bound >= extent_of([coordinate], (1,), extents)


class TestNumbersOfTheFacts:
    def test_mod_with_a_coefficient_wraps_where_it_does(self):
        # facts-compiler.md j.2: Mod(3h, 64) over 100 values takes all of 0..63; at h = 63 it is 61.
        assert access_window([sympy.Mod(3 * A, 64)], (64,), 1, {A: 100}).nbytes == 64
        assert coordinate_span_elems(sympy.Mod(3 * A, 64), {A: 100}, {}) is None

    def test_bounds_that_the_seed_asserts(self):
        assert coordinate_span_elems(sympy.floor(2 * sympy.Mod(A, 2048)), {A: 6000}, {}) == 4095
        assert coordinate_span_elems(sympy.Mod(A, 64) + sympy.Mod(A, 128), {A: 200}, {}) == 191

    def test_bound_of_two_mods_misses_what_lies_between_its_points(self):
        terms = sympy.Mod(A, 2) + 2 * sympy.Mod(A, 3)
        assert coordinate_span_elems(terms, {A: 7}, {}) == 5
        assert access_window([terms], (8,), 1, {A: 7}).nbytes == 6

    def test_range_that_its_split_does_not_divide_has_no_bound(self):
        assert coordinate_span_elems(A + B, {A: 10, B: 4}, {A: 3}) is None

    def test_tiles_that_begin_within_a_period_are_all_looked_at(self):
        # Tiles of 6 over sticks of 4: one begins at 0, the next in the middle of a stick.
        access = [sympy.floor(A / 4), sympy.Mod(A, 4)]
        assert largest_tile_window(access, (100, 4), 1, {A: 6}, {A: 10}) == 6
        assert largest_tile_window([sympy.floor(A / 4)], (100,), 1, {A: 6}, {A: 10}) == 2

    def test_computed_index_may_be_anywhere_in_its_extent(self):
        index = sympy.Symbol("indirect0", integer=True)
        window = access_window(
            [sympy.floor(A / 64), index, sympy.Mod(A, 64)], (4, 1000, 64), 2, {A: 64}, indirect={index: 1000}
        )
        assert window.nbytes == 2 * (999 * 64 + 64)

    def test_what_mixes_symbols_over_too_many_points_is_not_known(self):
        mixed = sympy.Mod(3 * A + 5 * B, 64)
        assert access_window([mixed], (64,), 1, {A: 10**4, B: 10**4}) is None
        assert largest_tile_window([mixed], (64,), 1, {A: 10**4, B: 10**4}, {A: 2}) is None

    def test_large_ranges_take_no_time(self):
        window = access_window([sympy.floor(A / 64), B, sympy.Mod(A, 64)], (769, 8192, 64), 2, {A: 49159, B: 8192})
        # 768 columns of sticks of 8192 rows lie before the last one, of which each row holds 7 elements.
        assert window.nbytes == 2 * (768 * 8192 * 64 + 8191 * 64 + 7)
