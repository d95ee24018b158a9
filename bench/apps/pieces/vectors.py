"""Parameters and gradients of a model as one flat array: what the programs send."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

__all__ = ["Vector", "gradient_of", "parameters_of", "set_parameters", "size_of"]

Vector = npt.NDArray[np.float32]


def parameters_of(model: nn.Module) -> Vector:
    return _flat(parameter.detach() for parameter in model.parameters())


def gradient_of(model: nn.Module, loss: torch.Tensor) -> Vector:
    model.zero_grad(set_to_none=True)
    loss.backward()
    return _flat(parameter.grad for parameter in model.parameters())


def set_parameters(model: nn.Module, vector: Vector) -> None:
    at = 0
    with torch.no_grad():
        for parameter in model.parameters():
            part = np.array(vector[at : at + parameter.numel()])  # a copy: the vector may be read-only
            parameter.copy_(torch.from_numpy(part).view_as(parameter))
            at += parameter.numel()


def size_of(model: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def _flat(tensors: Any) -> Vector:
    flat: Vector = torch.cat([tensor.reshape(-1) for tensor in tensors]).numpy()
    return flat
