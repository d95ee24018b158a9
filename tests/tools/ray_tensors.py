"""Actors that return tensors through Ray Direct Transport. It loads torch: tests import it in their fixtures."""

import os
from typing import Any

import ray
import torch
from ray.experimental import set_target_for_ref

from hoplite_ucx.ray import direct_transport

direct_transport.register()  # the decorators below ask for it

SIZE = 100_000


@ray.remote(num_cpus=0, max_restarts=1)
class Tensors:
    """With methods that return tensors through hoplite."""

    def pid(self) -> int:
        return os.getpid()

    @ray.method(tensor_transport="hoplite")
    def make(self, value: float) -> Any:
        return torch.full((SIZE,), value)

    @ray.method(tensor_transport="hoplite")
    def state(self) -> Any:
        layers = {f"layer {n}": torch.full((10, 20), float(n), dtype=torch.bfloat16) for n in range(3)}
        return {**layers, "steps": torch.tensor(5), "none": torch.empty(0), "turned": torch.arange(6.0).view(2, 3).t()}

    @ray.method(tensor_transport="hoplite")
    def nothing(self) -> Any:
        return {"no": "tensors"}

    def put(self, value: float) -> list[Any]:
        return [ray.put(torch.full((SIZE,), value), _tensor_transport="hoplite")]

    def total(self, tensor: Any) -> float:
        return float(tensor.double().sum())

    def changed(self, tensor: Any) -> float:
        tensor += 1
        return float(tensor.double().sum())

    def described(self, state: dict[str, Any]) -> dict[str, Any]:
        return {name: (str(each.dtype), tuple(each.shape), each.tolist()) for name, each in state.items()}

    def same(self, value: Any) -> Any:
        return value

    def nested(self, refs: list[Any]) -> float:
        return float(ray.get(refs[0]).double().sum())

    def into(self, refs: list[Any]) -> tuple[bool, float]:
        target = torch.empty(SIZE)
        set_target_for_ref(refs[0], [target])
        got = ray.get(refs[0])
        return got.data_ptr() == target.data_ptr(), float(target.double().sum())
