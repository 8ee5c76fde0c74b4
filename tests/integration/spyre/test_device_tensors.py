"""Tensors on the card: made, copied, viewed, written, printed; padding stays poison and memory comes back."""

from __future__ import annotations

import threading

import pytest
import torch

from strideweave.spyre import copies
from strideweave.spyre.default_layout import layout_for
from strideweave.spyre.memory import BASE, memory
from strideweave.spyre.storage import record_of

DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16,
)  # fmt: skip


def values(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.randn(size) * 10).to(dtype)


def same(on_card: torch.Tensor, on_cpu: torch.Tensor) -> None:
    assert on_card.device == torch.device("spyre", 0)
    back = on_card.cpu()
    assert back.dtype is on_cpu.dtype
    if on_cpu.dtype.itemsize == 1:
        assert torch.equal(back.view(torch.uint8), on_cpu.view(torch.uint8))
    else:
        torch.testing.assert_close(back, on_cpu, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(), (0,), (1,), (5, 0), (130,), (4, 100), (3, 5, 70), (2, 1, 3, 64), (1,) * 7 + (3,)])
def test_to_and_back_keeps_every_value(size: tuple[int, ...], dtype: torch.dtype) -> None:
    host = values(size, dtype)
    moved = host.to("spyre")
    same(moved, host)
    same(moved.clone(), host)
    assert moved.stride() == host.stride()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bool, torch.int64], ids=str)
def test_views_read_and_write_their_part(dtype: torch.dtype) -> None:
    host = values((6, 4, 96), dtype)
    card = host.to("spyre")
    views = [
        lambda t: t[2],
        lambda t: t[:, 1:3, 5:70],
        lambda t: t.transpose(0, 2)[3],
        lambda t: t[::2, :, ::3],
        lambda t: t.view(24, 96)[7:9],
        lambda t: t.view(6, 4, 3, 32).permute(2, 0, 1, 3)[1],
        lambda t: t.diagonal(dim1=0, dim2=1),
        lambda t: t.unfold(2, 10, 7),
        lambda t: t.flatten()[50:400],
        lambda t: t.as_strided((5, 5), (100, 3), 17),
    ]
    for k, view in enumerate(views):
        same(view(card), view(host))
        if k != 7:  # overlapping parts cannot be filled in one step
            view(card).fill_(k)
            view(host).fill_(k)
            same(card, host)
    assert card[2]._base is card
    assert card[2].storage_offset() == host[2].storage_offset()


def test_a_view_of_another_dtype_shares_bytes() -> None:
    host = values((4, 100), torch.float32)
    card = host.to("spyre")
    same(card.view(torch.int32), host.view(torch.int32))
    same(card.view(torch.int16), host.view(torch.int16))
    card.view(torch.int32)[1] = 0
    host.view(torch.int32)[1] = 0
    same(card, host)
    pairs = torch.randn(3, 50, 2)
    same(torch.view_as_complex(pairs.to("spyre")), torch.view_as_complex(pairs))
    same(torch.view_as_real(torch.view_as_complex(pairs.to("spyre"))), pairs)
    flags = torch.tensor([True, False, True])
    same(flags.to("spyre").view(torch.uint8), flags.view(torch.uint8))


def test_copies_between_layouts_dtypes_and_devices() -> None:
    host = values((5, 7, 66), torch.float32)
    card = host.to("spyre")
    for dtype in (torch.float16, torch.float64, torch.int32, torch.bool):
        same(card.to(dtype), host.to(dtype))
        target = torch.empty(5, 7, 66, dtype=dtype)
        target.copy_(card)
        assert torch.equal(target, host.to(dtype))
    assert torch.equal(torch.empty(7, 5, 66).transpose(0, 1).copy_(card), host)
    same(card.transpose(0, 2).contiguous(), host.transpose(0, 2).contiguous())
    same(torch.empty(2, 5, 7, 66, device="spyre").copy_(card), host.expand(2, 5, 7, 66).contiguous())
    card[1:].copy_(card[:-1])
    host[1:].copy_(host[:-1].clone())
    same(card, host)
    same(torch.empty(3, 66, device="spyre").copy_(host[0, :3]), host[0, :3])


def test_conjugate_and_negative_bits_are_resolved() -> None:
    host = torch.randn(4, 40, dtype=torch.complex64)
    card = host.to("spyre")
    same(card.conj(), host.conj().resolve_conj())
    same(card.conj() @ card.t(), host.conj() @ host.t())
    same(card.conj().imag, host.conj().imag.resolve_neg())
    for target in (card, host):
        target.conj().copy_(torch.full((4, 40), 1 + 2j))
    same(card, host)
    same(torch.zeros(4, 40, dtype=torch.complex64, device="spyre").copy_(host.conj()), host.conj().resolve_conj())


def test_channels_last_keeps_its_strides() -> None:
    host = values((2, 3, 8, 8), torch.float32)
    card = host.to("spyre").to(memory_format=torch.channels_last)
    assert card.stride() == host.to(memory_format=torch.channels_last).stride()
    same(card + 1, host + 1)
    assert (card * 2).is_contiguous(memory_format=torch.channels_last)
    assert torch.empty_like(card).stride() == card.stride()


def test_factories_and_contexts_make_tensors_of_the_card() -> None:
    same(torch.arange(100, device="spyre"), torch.arange(100))
    same(torch.full((3, 4), 2.5, device="spyre:0"), torch.full((3, 4), 2.5))
    same(torch.eye(5, device="spyre"), torch.eye(5))
    same(torch.tensor([[1, 2], [3, 4]], device="spyre"), torch.tensor([[1, 2], [3, 4]]))
    same(torch.zeros(3).spyre(), torch.zeros(3))
    assert torch.zeros(1, device="spyre").is_spyre
    with torch.device("spyre"):
        assert torch.ones(3).device.type == "spyre"
        assert torch.nn.Linear(2, 2).weight.device.type == "spyre"
    torch.set_default_device("spyre")
    try:
        assert torch.rand(2).device.type == "spyre"
    finally:
        torch.set_default_device(None)
    assert torch.ones(1).device.type == "cpu"


def test_random_numbers_are_the_cpus_after_the_same_seed() -> None:
    torch.manual_seed(3)
    want = torch.randn(5, 7), torch.randint(0, 9, (4,)), torch.randperm(6)
    torch.spyre.manual_seed(3)
    got = (
        torch.randn(5, 7, device="spyre"),
        torch.randint(0, 9, (4,), device="spyre"),
        torch.randperm(6, device="spyre"),
    )
    for a, b in zip(got, want, strict=True):
        same(a, b)
    state = torch.spyre.get_rng_state()
    first = torch.rand(3, device="spyre")
    torch.spyre.set_rng_state(state)
    same(torch.rand(3, device="spyre"), first.cpu())
    generator = torch.Generator().manual_seed(1)
    same(torch.rand(3, device="spyre", generator=generator), torch.rand(3, generator=torch.Generator().manual_seed(1)))
    with torch.random.fork_rng(device_type="spyre"):
        torch.manual_seed(9)


def test_in_place_operations_bump_the_version_and_keep_the_storage() -> None:
    card = torch.zeros(4, 50, device="spyre")
    pointer, version = card.data_ptr(), card._version
    card.add_(1).mul_(3)
    card[1:3] -= 2
    card[:, 0] = 7
    card.masked_fill_(card > 5, 0)
    assert card.data_ptr() == pointer
    assert card._version > version
    host = torch.full((4, 50), 3.0)
    host[1:3] -= 2
    host[:, 0] = 0
    same(card, host)


def test_operands_that_share_a_storage_mean_what_they_mean_on_the_cpu() -> None:
    host = values((5, 40), torch.float32)
    card = host.to("spyre")
    card[0].add_(card[1])
    host[0].add_(host[1])
    same(card, host)
    torch.add(card[1], card[2], out=card[1])
    torch.add(host[1], host[2], out=host[1])
    same(card, host)
    with pytest.raises(RuntimeError, match="single memory location"):
        card.view(200)[1:].mul_(card.view(200)[:-1])
    with pytest.raises(RuntimeError, match="single memory location"):
        card[0].expand(5, 40).add_(1)


def test_out_arguments_are_resized_and_written() -> None:
    out = torch.empty(0, device="spyre")
    left, right = values((3, 40), torch.float32), values((40, 5), torch.float32)
    torch.mm(left.to("spyre"), right.to("spyre"), out=out)
    same(out, left @ right)
    best, where = torch.empty(3, device="spyre"), torch.empty(3, dtype=torch.int64, device="spyre")
    torch.max(left.to("spyre"), 1, out=(best, where))
    same(best, left.max(1).values)
    same(where, left.max(1).indices)


def test_resize_keeps_what_was_there() -> None:
    card = torch.arange(6.0, device="spyre")
    card.resize_(2, 2)
    same(card, torch.arange(4.0).view(2, 2))
    card.resize_(3, 40)
    assert card[0, :6].tolist() == [0, 1, 2, 3, 4, 5]
    assert card.set_().numel() == 0


def test_broadcast_operands_are_read_where_they_are() -> None:
    host = values((4, 6, 100), torch.float32)
    card = host.to("spyre")
    for other in (host[0, 0], host[0], host[:, :1], host[:1, :, :1], host[..., :1], torch.tensor(2.0), host[:1, 0, :1]):
        other = other.clone()
        for function in (torch.add, torch.mul, torch.sub, torch.div, torch.maximum):
            same(function(card, other.to("spyre")), function(host, other))
            same(function(other.to("spyre"), card), function(other, host))
    same(card + 2, host + 2)
    same(1 - card, 1 - host)
    same(card.to(torch.int64) + 0.5, host.to(torch.int64) + 0.5)
    same(card.to(torch.int32) % 5, host.to(torch.int32) % 5)
    same(card.half() * torch.tensor(2.0, dtype=torch.float64), host.half() * torch.tensor(2.0, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int64], ids=str)
def test_padding_lanes_are_poison_after_pointwise_operations(dtype: torch.dtype) -> None:
    card = values((3, 70), dtype).to("spyre")
    scalar = torch.tensor(3, dtype=dtype, device="spyre")
    for made in (card, card + card, card * 2, -card, card.clone(), scalar + 1, card.add_(1), torch.zeros_like(card)):
        record = record_of(made)
        layout, start = record.stored.layout, record.address // dtype.itemsize
        lanes = memory().view(dtype)[start : start + layout.elems].view(layout.device_size)
        if made.dim():
            padding = lanes[-1, :, 70 % layout.elems_per_stick :]
        else:
            padding = lanes[0, 1:]
        assert padding.numel()
        assert (padding.isnan() if dtype.is_floating_point else padding == -1).all()


def test_memory_is_counted_and_comes_back() -> None:
    before = torch.spyre.memory_allocated()
    torch.spyre.reset_peak_memory_stats()
    card = torch.zeros(1000, 100, device="spyre")
    assert torch.spyre.memory_allocated() == before + 1000 * 128 * 4
    view = card[3:5]
    pointer = card.untyped_storage().data_ptr()
    assert pointer == BASE + record_of(card).address
    del card
    assert torch.spyre.memory_allocated() == before + 1000 * 128 * 4
    assert view.sum().item() == 0
    del view
    assert torch.spyre.memory_allocated() == before
    assert torch.spyre.max_memory_allocated() >= before + 1000 * 128 * 4
    for _ in range(50):
        torch.zeros(64, 64, device="spyre").t()[3:].contiguous()
    assert torch.spyre.memory_allocated() == before


def test_storage_has_the_default_layout_of_size_and_strides() -> None:
    for made in (
        torch.empty(3, 100, device="spyre"),
        torch.empty(2, 3, 8, 8, device="spyre", memory_format=torch.channels_last),
        torch.empty_strided((3, 4), (10, 1), device="spyre"),
        torch.empty((1,) * 7 + (3,), device="spyre"),
        torch.empty(4, 1, device="spyre", dtype=torch.bool),
    ):
        layout = layout_for(made.size(), made.stride(), made.dtype)
        assert memory().layout_at(made.untyped_storage().data_ptr() - BASE) == layout


def test_a_small_view_of_a_large_tensor_is_all_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    large = torch.zeros(10_000, 1000, device="spyre")
    large[77] = 3
    monkeypatch.setattr("strideweave.spyre.copies.image", lambda record: pytest.fail("all of it was read"))
    for view in (large[77], large[70:80, 3:900:4][7], large.t()[5:9, 77], large.view(100, 100, 1000)[0, 77]):
        assert (view == 3).all().item()
    large[77, 5:7].sub_(1).mul_(2)
    assert large[77, 4:8].tolist() == [3, 4, 4, 3]


def test_expanded_operands_are_not_written_out_on_the_host() -> None:
    one = torch.full((1, 1), 3.0, device="spyre")
    assert copies.read(one.expand(50_000, 50_000)).stride() == (0, 0)
    assert one.expand(50_000, 50_000)[7, 5:9].cumsum(0).tolist() == [3, 6, 9, 12]
    row = torch.arange(4.0, device="spyre")
    same(row.expand(3, 4).cumsum(0), torch.arange(4.0).expand(3, 4).cumsum(0))
    same(row.expand(3, 4).contiguous(), torch.arange(4.0).expand(3, 4).contiguous())


def test_printing_shows_values_and_the_device() -> None:
    assert repr(torch.arange(3, device="spyre")) == "tensor([0, 1, 2], device='spyre:0')"
    assert "requires_grad=True" in repr(torch.nn.Parameter(torch.ones(2, device="spyre")))
    assert "size=(0, 3)" in repr(torch.empty(0, 3, device="spyre"))


def test_threads_work_on_their_own_tensors() -> None:
    wrong = []

    def work(k: int) -> None:
        for _ in range(40):
            made = (torch.full((3, 40), float(k), device="spyre") * 2 + k).t().contiguous()
            if not bool((made == 3 * k).all()):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
