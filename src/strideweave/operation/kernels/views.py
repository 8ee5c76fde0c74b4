"""The adjoint of views."""

from __future__ import annotations

import torch

from strideweave.operation.call import ResolvedInvocation
from strideweave.operation.torch_executor import kernel


@kernel("embed")
def _embed(invocation: ResolvedInvocation, g: torch.Tensor) -> torch.Tensor:
    target, offset, layout = (invocation.options[k] for k in ("target", "offset", "layout"))
    leaves = layout.leaves()
    # A view repeats slots only where its stride is 0: what meets there is summed first, so that no slot is added twice.
    repeated = [k for k, (n, d) in enumerate(leaves) if d == 0 and n > 1]
    if repeated:
        g = g.sum(repeated, keepdim=True)
    covers_all = not repeated and g.numel() == target.size
    whole = [n for n, _ in target.leaves()], [d for _, d in target.leaves()]
    make = torch.empty_strided if covers_all else _zeros_strided
    out = make(*whole, dtype=g.dtype, device=g.device)
    sizes = [1 if k in repeated else n for k, (n, _) in enumerate(leaves)]
    torch.as_strided(out, sizes, [d for _, d in leaves], offset).copy_(g)
    return out


@kernel("copy")
def _copy(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    leaves = invocation.results[0].layout.leaves()
    made = torch.empty_strided([n for n, _ in leaves], [d for _, d in leaves], dtype=x.dtype, device=x.device)
    return made.copy_(x)


def _zeros_strided(sizes: list[int], strides: list[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(sizes, strides, dtype=dtype, device=device).zero_()
