"""The compiler half: a torch.compile backend for the card, the only place that touches torch._inductor."""

from strideweave.inductor.backend import register
from strideweave.inductor.errors import Unsupported
from strideweave.inductor.hints import spyre_hint
from strideweave.inductor.names import declare_tensor_dim, name_tensor_dims
from strideweave.spyre import config

register()

__all__ = ["Unsupported", "config", "declare_tensor_dim", "name_tensor_dims", "register", "spyre_hint"]
