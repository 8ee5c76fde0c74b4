"""What the card does not do is refused with a message, and never crashes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

REFUSALS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "pinned factory": (
        lambda: torch.randn(3, device="spyre", pin_memory=True),
        RuntimeError,
        "only memory of the host",
    ),
    "pin_memory": (lambda: torch.ones(3, device="spyre").pin_memory(), RuntimeError, "only dense CPU tensors"),
    "generator": (lambda: torch.Generator("spyre"), NotImplementedError, "getNewGenerator"),
    "numpy": (lambda: torch.ones(3, device="spyre").numpy(), TypeError, "Use Tensor.cpu"),
    "second card": (lambda: torch.empty(3, device="spyre:1"), RuntimeError, "there is one card"),
    "to second card": (lambda: torch.ones(3).to("spyre:7"), RuntimeError, "there is one card"),
    "to_sparse": (lambda: torch.ones(3, device="spyre").to_sparse(), RuntimeError, r"aten\._to_sparse.*strided"),
    "sparse factory": (lambda: torch.zeros(3, layout=torch.sparse_coo, device="spyre"), Exception, "[sS]parse"),
    "to_mkldnn": (lambda: torch.ones(3, device="spyre").to_mkldnn(), RuntimeError, "strided tensors only"),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(2, device="spyre")]).sum(),
        Exception,
        "NestedTensor|nested",
    ),
    "two devices": (
        lambda: torch.ones(3, device="spyre") + torch.ones(3),
        RuntimeError,
        r"at least two devices, spyre:0 and cpu.*aten\.add",
    ),
    "two devices in a product": (
        lambda: torch.ones(3, 3, device="spyre") @ torch.ones(3, 3),
        RuntimeError,
        "at least two devices",
    ),
    "out of memory": (
        lambda: torch.empty(2**45, device="spyre"),
        torch.OutOfMemoryError,
        "cannot allocate 140737488355328 bytes.*are free",
    ),
    "storage resize": (
        lambda: torch.ones(3, device="spyre").untyped_storage().resize_(100),
        RuntimeError,
        "cannot resize a storage of 12 bytes",
    ),
    "dlpack": (lambda: torch.from_dlpack(torch.ones(3, device="spyre")), ValueError, "spyre"),
    "meta": (lambda: torch.empty(3, device="meta").to("spyre"), NotImplementedError, "meta"),
    "index out of range": (
        lambda: torch.ones(3, device="spyre")[torch.tensor([5], device="spyre")],
        IndexError,
        "out of bounds",
    ),
    "shapes": (lambda: torch.ones(3, device="spyre") + torch.ones(4, device="spyre"), RuntimeError, "must match"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(3, device="spyre"), 0.1, 0, torch.qint8),
        Exception,
        ".",
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", REFUSALS)
def test_refusal_says_what_and_why(name: str) -> None:
    function, kind, words = REFUSALS[name]
    with pytest.raises(kind, match=words):
        function()
    assert (torch.ones(2, device="spyre") + 1).tolist() == [2, 2]


def test_host_tensors_are_pinned_in_name_only() -> None:
    host = torch.ones(3)
    assert torch.equal(host.pin_memory(), host)
    assert torch.ones(3, device="spyre").cpu().numpy().tolist() == [1, 1, 1]
    assert torch.ones(3, device="spyre").numpy(force=True).tolist() == [1, 1, 1]


def test_host_indices_are_taken_as_on_every_device() -> None:
    values = torch.arange(6.0, device="spyre").view(2, 3)
    assert values[torch.tensor([1, 0])].tolist() == [[3, 4, 5], [0, 1, 2]]
    values[torch.tensor([0])] = 9
    assert values.tolist() == [[9, 9, 9], [3, 4, 5]]
