"""What programs do with the card: autograd, modules, optimizers, autocast, transforms, loaders, profiler, Dynamo."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def same(on_card: torch.Tensor, on_cpu: torch.Tensor, **tolerance: Any) -> None:
    assert on_card.device.type == "spyre"
    torch.testing.assert_close(on_card.detach().cpu(), on_cpu.detach(), **tolerance)


class Block(torch.nn.Module):
    """A transformer block in small."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.qkv = torch.nn.Linear(64, 192)
        self.out = torch.nn.Linear(64, 64)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.GELU(), torch.nn.Linear(100, 64))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        batch, steps, width = values.shape
        parts = self.qkv(self.norm(values)).view(batch, steps, 3, 4, 16).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        values = values + self.out(mixed.transpose(1, 2).reshape(batch, steps, width))
        return values + self.mlp(F.rms_norm(values, (64,)))


def test_module_moved_to_the_card_trains_as_on_the_cpu() -> None:
    torch.manual_seed(0)
    here = Block()
    there = copy.deepcopy(here).to("spyre")
    values = torch.randn(2, 10, 64)
    for model, inputs in ((here, values), (there, values.to("spyre"))):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    for (name, a), b in zip(there.named_parameters(), here.parameters(), strict=True):
        assert a.is_spyre, name
        same(a, b, rtol=1e-3, atol=1e-4)
        assert a.grad is not None
        same(a.grad, b.grad, rtol=1e-3, atol=1e-5)
    assert there.cpu().qkv.weight.device.type == "cpu"


def test_convolution_batch_norm_and_embedding_forward_and_backward() -> None:
    torch.manual_seed(0)
    here = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    )
    there = copy.deepcopy(here).spyre()
    values = torch.randn(2, 3, 10, 10)
    a, b = there(values.to("spyre")), here(values)
    same(a, b)
    a.sum().backward()
    b.sum().backward()
    same(there[0].weight.grad, here[0].weight.grad, rtol=1e-4, atol=1e-4)
    same(there[1].running_mean, here[1].running_mean)
    table = torch.nn.Embedding(20, 8)
    moved = copy.deepcopy(table).to("spyre")
    index = torch.tensor([[1, 2], [19, 0]])
    same(moved(index.to("spyre")), table(index))
    moved(index.to("spyre")).sum().backward()
    assert moved.weight.grad.sum().item() == 32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bit_products_round_as_float32_does(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(30, 70).to(dtype), torch.randn(70, 50).to(dtype)
    same(a.to("spyre") @ b.to("spyre"), (a.float() @ b.float()).to(dtype))
    same(
        torch.addmm(b[0].to("spyre"), a.to("spyre"), b.to("spyre")),
        torch.addmm(b[0].float(), a.float(), b.float()).to(dtype),
    )


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "LBFGS", "NAdam", "Adamax", "Muon"])
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_optimizers_step_as_on_the_cpu(name: str, options: dict[str, bool]) -> None:
    kind = getattr(torch.optim, name)
    torch.manual_seed(0)
    here = torch.nn.Linear(40, 30, bias=False)
    there = copy.deepcopy(here).to("spyre")
    try:
        kind(here.parameters(), lr=0.1, **options)
    except (TypeError, RuntimeError) as error:
        pytest.skip(f"the CPU has it not: {error}")
    values = torch.randn(8, 40)
    for model, inputs in ((here, values), (there, values.to("spyre"))):
        optimizer = kind(model.parameters(), lr=0.1, **options)

        def closure(model: Any = model, optimizer: Any = optimizer, inputs: Any = inputs) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
    same(there.weight, here.weight, rtol=1e-4, atol=1e-5)


def test_autocast_and_gradient_scaler() -> None:
    model = torch.nn.Linear(40, 30).to("spyre")
    values = torch.randn(4, 40, device="spyre")
    with torch.autocast("spyre", dtype=torch.bfloat16):
        product = model(values)
        assert product.dtype is torch.bfloat16
        assert product.exp().dtype is torch.float32
        assert (product + 1).dtype is torch.bfloat16
        assert torch.cat([product, values[:, :30]]).dtype is torch.float32
    assert model(values).dtype is torch.float32
    with torch.autocast("spyre"):
        assert model(values).dtype is torch.get_autocast_dtype("spyre")
    torch.set_autocast_enabled("spyre", True)  # without the context, as a program that was saved with it does
    try:
        assert model(values).dtype is torch.get_autocast_dtype("spyre")
    finally:
        torch.set_autocast_enabled("spyre", False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("spyre")
    scaler.scale(product.float().sum()).backward()
    scaler.unscale_(optimizer)
    before = model.weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before.cpu(), model.weight.cpu())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_function_transforms_give_what_the_cpu_gives() -> None:
    values = torch.randn(5, 4)
    card = values.to("spyre")

    def function(row: torch.Tensor) -> torch.Tensor:
        return (row.sin() * row).sum()

    same(torch.func.vmap(function)(card), torch.func.vmap(function)(values))
    same(torch.func.grad(function)(card), torch.func.grad(function)(values))
    same(torch.func.vmap(torch.func.grad(function))(card), torch.func.grad(function)(values))
    same(torch.func.jvp(function, (card,), (card,))[1], torch.func.jvp(function, (values,), (values,))[1])
    same(torch.func.hessian(function)(card[0]), torch.func.hessian(function)(values[0]))


def test_checkpoint_and_higher_order_gradients() -> None:
    values = torch.randn(4, 8, device="spyre", requires_grad=True)
    torch.utils.checkpoint.checkpoint(lambda v: F.dropout(v.sin(), 0.5).sum(), values, use_reentrant=False).backward()
    assert values.grad is not None
    (first,) = torch.autograd.grad(values.pow(3).sum(), values, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), values)
    same(second, 6 * values.detach().cpu())
    assert torch.autograd.gradcheck(
        lambda v: (v * v).sum(), torch.randn(3, device="spyre", dtype=torch.float64, requires_grad=True)
    )


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_data_loaders_with_and_without_workers_and_pinning() -> None:
    on_card = TensorDataset(torch.arange(10.0, device="spyre"))
    assert sum(batch.sum().item() for (batch,) in DataLoader(on_card, batch_size=3)) == 45
    assert sum(batch.sum().item() for (batch,) in DataLoader(on_card, batch_size=3, num_workers=1)) == 45
    on_host = TensorDataset(torch.arange(10.0))
    loader = DataLoader(on_host, batch_size=3, pin_memory=True)
    assert sum(batch.to("spyre", non_blocking=True).sum().item() for (batch,) in loader) == 45


def test_accelerator_answers_for_the_card() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("spyre")
    assert (torch.accelerator.device_count(), torch.accelerator.current_device_index()) == (1, 0)
    assert torch.accelerator.is_available()
    torch.accelerator.synchronize()
    torch.accelerator.set_device_index(0)
    held = torch.ones(100, device="spyre")
    assert torch.accelerator.memory_allocated() == torch.spyre.memory_allocated() >= 512
    assert torch.accelerator.max_memory_allocated() >= 512
    assert torch.accelerator.memory_stats()["allocation.all.current"] >= 1
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() >= 512
    assert torch.float16 in torch.accelerator.get_device_capability()["supported_dtypes"]
    assert held.sum().item() == 100


def test_module_functions_of_the_device() -> None:
    assert torch.get_device_module("spyre") is torch.spyre
    assert (torch.spyre.is_available(), torch.spyre.device_count(), torch.spyre.current_device()) == (True, 1, 0)
    assert "simulated" in torch.spyre.get_device_name()
    assert torch.spyre.get_device_properties().multi_processor_count == 32
    torch.spyre.set_device("spyre:0")
    torch.spyre.synchronize()
    with torch.spyre.device(0):
        assert torch.spyre.mem_get_info()[1] == torch.spyre.get_device_properties().total_memory
    with pytest.raises(RuntimeError, match="there is one card"):
        torch.spyre.set_device(1)


def test_profiler_names_the_operations(capfd: pytest.CaptureFixture[str]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.ones(3, device="spyre") + 1
    assert any(event.key == "aten::add" for event in profile.key_averages())


def test_meta_modules_become_empty_on_the_card() -> None:
    model = torch.nn.Linear(3, 4, device="meta").to_empty(device="spyre")
    assert model.weight.is_spyre
    with torch.no_grad():
        torch.nn.init.ones_(model.weight)
    assert model.weight.sum().item() == 12
    with pytest.raises(NotImplementedError, match="meta"):
        torch.empty(3, device="meta").to("spyre")


def test_kernels_are_not_traced_by_dynamo() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=backend)
    def function(values: torch.Tensor) -> torch.Tensor:
        values = (values + 1).softmax(-1)
        values.tolist()  # ends a graph
        return (values @ values.t()).sort(0).values.sum(-1) * torch.spyre.device_count()

    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(6):
            values = torch.randn(4, 40)
            want = (s := (values + 1).softmax(-1)) @ s.t()
            same(function(values.to("spyre")), want.sort(0).values.sum(-1))
    assert len(graphs) == 2
    torch._dynamo.reset()
