"""Saving and loading: files, pickles, deep copies, other processes."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from strideweave.spyre.storage import record_of, stored_as

MAKERS: list[Callable[[], torch.Tensor]] = [
    lambda: torch.randn(3, 4, device="spyre"),
    lambda: torch.randn(3, 4, device="spyre")[:, 1:],
    lambda: torch.ones(3, device="spyre", dtype=torch.bool),
    lambda: torch.randn(2, 3, 8, 8, device="spyre").to(memory_format=torch.channels_last),
    lambda: torch.empty(0, 3, device="spyre"),
    lambda: torch.tensor(2.5, device="spyre"),
    lambda: torch.randn(130, device="spyre").half(),
    lambda: torch.randn(5, device="spyre", dtype=torch.complex64),
]


def loaded(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("place", [None, "cpu", "spyre", "spyre:0", torch.device("spyre")])
def test_saved_tensor_comes_back_where_it_is_wanted(maker: Callable[[], torch.Tensor], place: Any) -> None:
    made = maker()
    back = loaded(made, map_location=place)
    assert back.device.type == ("cpu" if place == "cpu" else "spyre")
    assert torch.equal(back.cpu(), made.cpu())
    assert back.stride() == made.stride()
    assert back.dtype is made.dtype


def test_cpu_file_loads_onto_the_card_in_the_layout_of_its_tensors() -> None:
    model = torch.nn.Linear(100, 40)
    state = loaded(model.state_dict(), map_location="spyre")
    assert record_of(state["weight"]).stored is stored_as((40, 100), (100, 1), torch.float32)
    there = torch.nn.Linear(100, 40, device="spyre")
    there.load_state_dict(state)
    assert torch.equal(there.weight.cpu(), model.weight)
    assert torch.equal(there.bias.cpu(), model.bias)


def test_tensors_that_share_storage_still_do() -> None:
    base = torch.arange(10.0)
    back = loaded({"whole": base, "part": base[1:]}, map_location="spyre")
    back["whole"][1] = 7
    assert back["part"][0] == 7
    back = loaded({"part": base[1:].to("spyre")[1:], "flag": 3})
    assert back["part"].tolist() == list(range(2, 10))


def test_loading_to_a_card_that_is_not_there_says_so() -> None:
    with pytest.raises(RuntimeError, match="there is one card"):
        loaded(torch.ones(2), map_location="spyre:1")


def test_pickle_and_deepcopy_are_copies_in_the_same_layout() -> None:
    made = torch.randn(3, 100, device="spyre")
    for twin in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), copy.copy(made).clone()):
        assert twin.is_spyre
        assert torch.equal(twin.cpu(), made.cpu())
        assert record_of(twin).stored is record_of(made).stored
        twin.zero_()
        assert made.abs().sum().item() > 0
    part, whole = copy.deepcopy((made[1:], made))
    part.zero_()
    assert whole[1:].abs().sum().item() == 0
    model = torch.nn.Linear(7, 5).to("spyre")
    twin = copy.deepcopy(model)
    twin.weight.data.zero_()
    assert model.weight.abs().sum().item() > 0


def test_storages_are_made_cloned_and_read() -> None:
    made = torch.UntypedStorage(8, device="spyre")
    made.fill_(3)
    assert made.tolist() == [3] * 8
    assert made.device == torch.device("spyre", 0)
    assert made.clone().tolist() == [3] * 8
    assert made.cpu().tolist() == [3] * 8
    assert torch.ones(2, device="spyre").untyped_storage().nbytes() == 8
    flat = torch.empty(0, device="spyre").set_(torch.arange(4.0, device="spyre").untyped_storage())
    assert flat.tolist() == [0, 1, 2, 3]
    assert torch.UntypedStorage([1, 2, 3], device="spyre").tolist() == [1, 2, 3]
    assert torch.UntypedStorage(4).tolist() is not None


def _double(received: Any, sent: Any) -> None:
    import strideweave.spyre.device  # noqa: F401

    sent.put((received.get() * 2).cpu().tolist())


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_another_process_gets_a_copy() -> None:
    context = torch.multiprocessing.get_context("fork")
    there, back = context.Queue(), context.Queue()
    process = context.Process(target=_double, args=(there, back))
    process.start()
    there.put(torch.arange(5.0, device="spyre"))
    assert back.get(timeout=60) == [0, 2, 4, 6, 8]
    process.join()
    assert process.exitcode == 0
