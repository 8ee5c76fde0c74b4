"""Enough to write and train a small model: modules, losses, optimizers."""

from strideweave.nn.layers import (
    ELU,
    GELU,
    LeakyReLU,
    Linear,
    ReLU,
    Sequential,
    Sigmoid,
    SiLU,
    Softplus,
    Tanh,
)
from strideweave.nn.losses import CrossEntropyLoss, MSELoss
from strideweave.nn.module import Module
from strideweave.nn.optimizers import SGD, AdamW, Optimizer
from strideweave.nn.parameter import Parameter

__all__ = [
    "ELU",
    "GELU",
    "SGD",
    "AdamW",
    "CrossEntropyLoss",
    "LeakyReLU",
    "Linear",
    "MSELoss",
    "Module",
    "Optimizer",
    "Parameter",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softplus",
    "Tanh",
]
