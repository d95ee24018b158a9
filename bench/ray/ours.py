"""The same Ray job with `hoplite_ucx.ray`: its start differs, and what adds up arrays."""

from __future__ import annotations

from typing import Any

import hoplite_ucx.ray as hoplite_ray
from hoplite_ucx.bench.harness.timing import PAYLOAD
from hoplite_ucx.bench.ray.plain import Plain

__all__ = ["Ours"]


class Ours(Plain):
    def __init__(self, addresses: list[str], rate: float, memory: int) -> None:
        self._settings: dict[str, Any] = {"rate": PAYLOAD * rate, "memory": memory}
        super().__init__(addresses)

    def _connect(self, **options: Any) -> None:
        hoplite_ray.init(**self._settings, **options)

    def _combine(self, refs: list[Any], everywhere: bool) -> Any:
        return (hoplite_ray.allreduce if everywhere else hoplite_ray.reduce)(refs).ref
