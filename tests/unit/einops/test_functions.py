"""The three verbs on Tensors, against torch; and what the package exports."""

from __future__ import annotations

import pytest
import torch

import strideweave as sw
from strideweave import einops


def test_package_exports_exactly_the_names_of_the_facts() -> None:
    wanted = "EinsumSpec LayoutReference RearrangeSpec ReduceSpec Token TokenKind einsum lex parse_einsum"
    wanted += " parse_layout_ref parse_rearrange parse_reduce rearrange reduce"
    assert sorted(einops.__all__) == sorted(wanted.split())


@pytest.mark.parametrize(
    ("reduction", "function"),
    [("sum", torch.sum), ("mean", torch.mean), ("max", torch.amax), ("min", torch.amin)],
)
def test_reduce_equals_torch(reduction: str, function: object) -> None:
    x = torch.randn(2, 3, 4)
    ours = einops.reduce(sw.from_torch(x), "a b c -> c a", reduction)  # type: ignore[arg-type]
    torch.testing.assert_close(ours.torch(), function(x, dim=1).T)  # type: ignore[operator]


def test_rearrange_equals_permute_and_einsum_equals_torch() -> None:
    x, y = torch.randn(2, 3), torch.randn(3, 4)
    assert torch.equal(einops.rearrange(sw.from_torch(x), "a b -> b a").torch(), x.T)
    product = einops.einsum(sw.from_torch(x), sw.from_torch(y), "i k, k j -> j i")
    torch.testing.assert_close(product.torch(), (x @ y).T)


def test_reduce_refuses_an_unknown_reduction() -> None:
    with pytest.raises(ValueError, match="cannot reduce by 'median'"):
        einops.reduce(sw.ones(2), "a ->", "median")  # type: ignore[arg-type]
