"""The examples of seed 002 end to end, their sizes and the limit scaled down: numbers, loops, and the text of programs.

`STRIDEWEAVE_GOLDEN=1 pytest ...` writes the texts anew.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from strideweave.inductor import Unsupported, spyre_hint
from strideweave.inductor.span_overflow_hint_analysis import SEED_RULES
from support.planned import tiled

GOLDEN = Path(__file__).parent / "golden"
F32 = torch.float32


def half(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).to(torch.float16)


def lines_of(text: str) -> list[str]:
    """A program's text, an operation, operand or step a line."""
    broken = re.sub(r"(LoopSpec\(|OpSpec\(|TensorArg\(|op_info=|tiled_symbols=|Program\()", r"\n\1", text)
    return [line.strip() for line in broken.splitlines() if line.strip()]


def require_golden(name: str, text: str) -> None:
    path, found = GOLDEN / f"{name}.txt", lines_of(text)
    if os.environ.get("STRIDEWEAVE_GOLDEN") == "1":
        path.write_text("\n".join(found) + "\n")
    kept = path.read_text().splitlines()
    if kept != found:
        diff = "\n".join(difflib.unified_diff(kept, found, str(path.name), "now", lineterm=""))
        pytest.fail(f"{name} is another program now. If that is meant, run with STRIDEWEAVE_GOLDEN=1.\n{diff}")


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def gathered(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x[index] + 1


def index() -> torch.Tensor:
    return torch.arange(640).flip(0) % 200


EXAMPLES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], list[tuple[str, tuple[int, ...]]]]] = {
    "1_pointwise": (add, (half(1, 20, 16, 64), half(1, 20, 16, 64)), {"limit": 8192}, [("add", (5,))]),
    "2_gather_by_seed": (
        gathered, (half(200, 64), index()), {"limit": 25600, "cores": 32, **SEED_RULES},
        [("identity", ()), ("add", (4,))],
    ),
    "2_gather": (
        gathered, (half(200, 256), index()), {"limit": 51200, "cores": 1},
        [("identity", (2, 4)), ("add", (2, 4))],
    ),
    "3_reduction_output": (
        lambda x: x.sum(-1), (half(1, 20, 16, 64),), {"limit": 8192, "tolerance": 1e-2, **SEED_RULES}, [("sum", (5,))],
    ),
    "4_reduction_input": (
        lambda x: x.sum(0), (half(2, 20, 16, 64),), {"limit": 8192, "tolerance": 1e-2, **SEED_RULES}, [("sum", (10,))],
    ),
    "5_vocabulary_head": (
        F.linear, (half(2, 64), half(1024, 64)), {"limit": 32768, "tolerance": 2e-2},
        [("ReStickifyOpHBM", (4,)), ("batchmatmul", (4,))],
    ),
    "6_several_dims_by_seed": (
        lambda x: x + 1, (half(16, 16, 16, 64),), {"limit": 8192, **SEED_RULES}, [("add", (8, 8))],
    ),
    "6_several_dims": (
        lambda x: x + 1, (half(16, 16, 16, 64),), {"limit": 8192, "cores": 1}, [("add", (16, 4))],
    ),
    "7_whole_sticks": (
        lambda x: x + 1, (half(64, 833),), {"limit": 4 * 64 * 128, "cores": 1}, [("add", (3,)), ("add", ())],
    ),
    "8_reduction_in_parts": (
        lambda x: x.sum(-1), (half(64, 2048),), {"limit": 65536, "tolerance": 1e-1, "cores": 1},
        [("fill", ()), ("sum", (4,)), ("add", (4,)), ("copy", ())],
    ),
    "9_two_symbols_in_a_coordinate": (
        lambda x, y: x.reshape(32, 64) * y, (half(16, 128), half(32, 64)), {"limit": 3072, "cores": 1}, [("mul", (2,))],
    ),
}  # fmt: skip
"""By name: function, arguments, settings, and the loops around each operation."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str) -> None:
    function, args, settings, loops = EXAMPLES[name]
    found = tiled(function, *args, **settings)
    assert found.loops == loops
    require_golden(name, found.text)


def test_text_of_pointwise() -> None:
    text = tiled(add, half(1, 20, 16, 64), half(1, 20, 16, 64), limit=8192).text
    assert text.count("LoopSpec(") == 1
    assert text.count("sympify('5')") == 1
    assert "op='add'" in text
    assert "sympify('c0'): (sympify('4')" in text


def test_text_of_a_reduction() -> None:
    text = tiled(lambda x: x.sum(0), half(2, 20, 16, 64), limit=8192, tolerance=1e-2, **SEED_RULES).text
    assert "count=sympify('10')" in text
    assert "op='sum'" in text
    assert "tiled_symbols=[[sympify('c0')]]" in text
    # Neighbours along the middle dim are 2560 bytes apart where it is kept whole: that is cut, too.
    found = tiled(lambda x: x.sum(0), half(2, 20, 16, 64), limit=8192, tolerance=1e-2, cores=1)
    assert found.loops == [("sum", (10, 4))]


def test_vocabulary_head_by_seed_is_refused() -> None:
    with pytest.raises(
        Unsupported, match=r"Cannot auto-tile buf0: it reads already auto-tiled producer\(s\) \['buf1'\]"
    ):
        tiled(F.linear, half(2, 64), half(1024, 64), limit=32768, **SEED_RULES)


def test_text_of_the_vocabulary_head() -> None:
    text = tiled(F.linear, half(2, 64), half(1024, 64), limit=32768, tolerance=2e-2).text
    assert text.count("LoopSpec(") == 1
    assert "count=sympify('4')" in text
    assert text.index("op='ReStickifyOpHBM'") < text.index("op='batchmatmul'")
    assert "tiled_symbols=[[sympify('c0')]]" in text


def test_sticks_are_cut_by_nobody() -> None:
    with pytest.raises(Unsupported, match="preserves Spyre stick alignment"):
        tiled(lambda x: x + 1, half(64, 833), limit=4 * 64 * 128, **SEED_RULES)


def test_parts_of_a_reduction_are_not_for_the_seed() -> None:
    # What is combined away overflows: the cores divide it, or nobody does.
    found = tiled(lambda x: x.sum(-1), half(64, 2048), limit=65536, tolerance=1e-1, cores=4, **SEED_RULES)
    assert found.loops == [("sum", ())]
    with pytest.raises(Unsupported, match="one core's window into arg0_1"):
        tiled(lambda x: x.sum(-1), half(64, 2048), limit=65536, cores=1, **SEED_RULES)


HINTED: dict[str, tuple[Callable[..., Any], list[list[str | None]], dict[str, int]]] = {
    "1_pointwise": (add, [["A", "H", "B", "C"]] * 2, {"H": 5}),
    "4_reduction_input": (lambda x: x.sum(0), [[None, "H", "B", "C"]], {"H": 10}),
    "5_vocabulary_head": (F.linear, [[None, None], ["V", None]], {"V": 4}),
    "6_several_dims": (lambda x: x + 1, [["A", "B", "C", None]], {"B": 16, "C": 4}),
    "8_reduction_in_parts": (lambda x: x.sum(-1), [["M", "K"]], {"K": 4}),
}


@pytest.mark.parametrize("name", HINTED)
def test_hint_of_the_same_counts_makes_the_same_program(name: str) -> None:
    function, names, counts = HINTED[name]
    _, args, settings, _ = EXAMPLES[name]
    (first, count), *others = counts.items()

    def by_hand(*args: torch.Tensor) -> Any:
        with spyre_hint(num_tiles_per_dim={first: count}):
            if not others:
                return function(*args)
            with spyre_hint(num_tiles_per_dim=dict(others)):
                return function(*args)

    more = {key: value for key, value in settings.items() if key not in SEED_RULES}
    manual = tiled(by_hand, *args, plain=function, names=names, **more, ignore_span_overflow_hints=True)
    automatic = tiled(function, *args, **settings)
    assert manual.loops == automatic.loops
    assert manual.text == automatic.text


@pytest.mark.parametrize("count", [17, 769, 4096])
def test_text_does_not_grow_with_the_count(count: int) -> None:
    def run(rows: int) -> str:
        text = tiled(lambda x: x * 2, half(1, rows, 8, 64), limit=8 * 128, cores=1).text
        return re.sub(r"\d+", "n", text)

    assert run(count) == run(5)
