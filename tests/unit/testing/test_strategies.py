"""The strategies draw what their names say, and enough of it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

import strideweave.testing
from strideweave import DType, FileBacked, Layout, Tensor
from strideweave.carriers.file_backed import read_all
from strideweave.testing.strategies import broadcast_layouts, dense_layouts, dtypes, layouts, shapes, tensors


def reached(layout: Layout) -> list[int]:
    return [layout(k) for k in range(layout.size)]


@settings(max_examples=30)
@given(shapes(most=200, least_rank=2))
def test_shapes_keep_to_size_and_rank(shape: object) -> None:
    assert shape.size <= 200  # type: ignore[attr-defined]
    assert 2 <= len(shape) <= 4  # type: ignore[arg-type]


@settings(max_examples=30)
@given(layouts(200, injective=True), layouts(200, injective=False), dense_layouts(200))
def test_layouts_of_each_kind_reach_their_slots_so_often(one: Layout, many: Layout, dense: Layout) -> None:
    assert len(set(reached(one))) == one.size
    assert len(set(reached(many))) < many.size
    assert sorted(reached(dense)) == list(range(dense.size))


def test_layouts_are_nested_gapped_and_overlapping_among_others() -> None:
    chosen = settings(database=None, max_examples=2000, phases=[Phase.generate])
    assert find(layouts(100), lambda a: a.depth > 1, settings=chosen)
    assert find(layouts(100, injective=True), lambda a: a.cosize > a.size > 1, settings=chosen)
    assert find(broadcast_layouts(100), lambda a: 0 in [d for _, d in a.leaves()], settings=chosen)


@settings(max_examples=20)
@given(st.data())
def test_dtypes_are_of_the_kind_that_is_asked_for(data: st.DataObject) -> None:
    assert data.draw(dtypes(floating=True)).is_floating
    assert not data.draw(dtypes(floating=False)).is_floating
    assert data.draw(dtypes(among=[DType.Int8])) is DType.Int8


@settings(max_examples=40)
@given(tensors(layout=layouts(60)))
def test_tensors_lie_inside_their_carrier_and_may_have_special_values(tensor: Tensor) -> None:
    assert tensor.offset + tensor.layout.cosize <= tensor.carrier.size()
    assert tensor.dtype() in DType.registered()
    tensor[0]


@settings(max_examples=10)
@given(tensors(layout=layouts(30), dtype=st.just(DType.Int16), make=lambda values: _file(values)))
def test_tensors_are_made_over_the_carrier_that_is_asked_for(tensor: Tensor) -> None:
    assert isinstance(tensor.carrier, FileBacked)
    assert read_all(tensor.carrier)[tensor.offset] == tensor[0]
    tensor.carrier.release()


def _file(values: torch.Tensor) -> FileBacked:
    carrier = FileBacked(size=values.numel(), dtype=DType.from_torch(values.dtype))
    carrier._write_runs([(0, values)])
    return carrier


def test_strategies_without_hypothesis_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "strideweave.testing.strategies"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(ImportError, match=r"Install strideweave\[testing\]"):
        importlib.import_module(name)


def test_testing_without_strategies_needs_neither_hypothesis_nor_pytest() -> None:
    folder = Path(strideweave.testing.__file__).parent
    for path in folder.glob("*.py"):
        imports = [line for line in path.read_text().splitlines() if line.lstrip().startswith(("import ", "from "))]
        needs = [line for line in imports if line.split()[1].split(".")[0] in ("hypothesis", "pytest")]
        assert not needs or path.name == "strategies.py"
