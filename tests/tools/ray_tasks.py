"""What the tests of the Ray adapter run as tasks and actors, and what they ask about."""

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import hoplite_ucx as hoplite
from hoplite_ucx.ray.calls import peek
from hoplite_ucx.ray.session import session
from hoplite_ucx.ray.values import Handle, fetch
from tests.tools.waiting import HANG

SIZE = 100_000


@ray.remote(num_cpus=0)
class Actor:
    def pid(self) -> int:
        return os.getpid()

    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def make(self, value: float) -> Any:
        return np.full(SIZE, value)

    def tree(self, value: float) -> Any:
        return {"weights": np.full(SIZE, value), "steps": 7, "layers": [np.full(SIZE, value + 1), np.full(3, value)]}

    def put(self, value: float) -> list[Any]:
        return [ray.put(np.full(SIZE, value))]

    def total(self, array: Any) -> float:
        return float(array.sum())

    def keyword(self, *, array: Any) -> float:
        return float(array.sum())

    def nested(self, refs: list[Any]) -> float:
        return float(ray.get(refs[0]).sum())

    def inside(self, tree: dict[str, Any]) -> float:
        return float(tree["arrays"][1].sum()) + tree["number"]

    def call(self, other: Any, value: float) -> bytes:
        """Have another actor make an array, and keep the ref."""
        self.kept = other.make.remote(value)
        return name_of(self.kept)

    def pass_on(self, maker: Any, holder: Any, value: float) -> bytes:
        """What one puts, to another who looks."""
        return bytes(ray.get(holder.look.remote(ray.get(maker.put.remote(value)))))

    def look(self, refs: list[Any]) -> bytes:
        """Take what a Ray object has in it, but do not fetch the array yet."""
        self.kept = peek(refs[0])
        return bytes(self.kept.name)

    def kept_total(self) -> float:
        value = self.kept
        return float((fetch(session(), value.ref) if isinstance(value, Handle) else ray.get(value)).sum())

    def drop(self) -> None:
        self.kept = None

    def keep_tokens(self) -> None:
        """Ray hears of the next holder of a token when this process drops it: never, from now on."""
        from hoplite_ucx.ray.held_tokens import held_tokens  # it cannot be pickled with this class

        self.tokens: list[Any] = []
        hold = held_tokens.hold

        def hold_for_ever(token: Any) -> None:
            self.tokens.append(token)
            hold(token)

        held_tokens.hold = hold_for_ever  # type: ignore[method-assign]

    def echo(self, value: Any) -> Any:
        return value

    def kind(self, value: Any) -> str:
        return type(value).__name__


@ray.remote(num_cpus=0)
class AsyncActor:
    async def total(self, array: Any) -> float:
        return float(array.sum())

    async def awaited(self, refs: list[Any]) -> float:
        return float((await refs[0]).sum())


@ray.remote(num_cpus=0)
def total(array: Any) -> float:
    return float(array.sum())


@ray.remote(num_cpus=0)
def make(value: float) -> Any:
    return np.full(SIZE, value)


def on(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=False)


def actors_on_all_nodes() -> list[Any]:
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    actors = [Actor.options(scheduling_strategy=on(node)).remote() for node in nodes]
    get([actor.total.remote(ray.put(np.ones(SIZE))) for actor in actors])
    return actors


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=HANG)


def ones() -> Any:
    return np.ones(SIZE)


def is_ours(ref: Any) -> bool:
    """Whether the value went through hoplite."""
    return isinstance(peek(ref), Handle)


def name_of(ref: Any) -> bytes:
    """Of the object of ours behind a Ray ref."""
    handle = peek(ref)
    assert isinstance(handle, Handle)
    return handle.name


def existing(names: Iterable[bytes]) -> set[bytes]:
    """Those of these objects that hoplite has. Whatever else it has does not matter."""
    refs = [hoplite.ObjectRef(name) for name in names]
    found = session().call(lambda cluster: cluster.info(refs, timeout=HANG)) if refs else []
    return {each.ref.binary for each in found if each.exists}
