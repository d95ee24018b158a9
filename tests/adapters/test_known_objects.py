"""An object that was put: when it counts as lost. The cluster is made up: it says what each test wants, in order."""

from typing import Any

import pytest

import hoplite_ucx as hoplite
from hoplite_ucx.adapters.known_objects import ON_THE_WAY, SLICE, Lost, get_known
from hoplite_ucx.errors import Failure, FailureKind
from hoplite_ucx.runtime.worker.object_info import ObjectInfo, ObjectState

REF = hoplite.ref_for("an object")
LATE = Failure(FailureKind.TIMEOUT, "it has not come", "wait").exception()


class MadeUp:
    def __init__(self, states: list[ObjectState], values: list[Any]) -> None:
        self.states = states
        self.values = values
        self.timeouts: list[float] = []

    def info(self, ref: hoplite.ObjectRef) -> ObjectInfo:
        return ObjectInfo(ref, self.states.pop(0))

    def get(self, _ref: hoplite.ObjectRef, *, timeout: float) -> Any:
        self.timeouts.append(timeout)
        value = self.values.pop(0)
        if isinstance(value, Exception):
            raise value
        return value


def got(cluster: MadeUp) -> Any:
    return get_known(cluster, REF)  # type: ignore[arg-type]


def test_while_it_is_known_it_is_waited_for() -> None:
    cluster = MadeUp([ObjectState.COMING] * 2 + [ObjectState.READY], [LATE, LATE, 5])
    assert got(cluster) == 5
    assert cluster.timeouts == [SLICE] * 3


def test_news_of_a_put_may_be_on_their_way() -> None:
    cluster = MadeUp([ObjectState.UNKNOWN], [5])
    assert got(cluster) == 5
    assert cluster.timeouts == [ON_THE_WAY]


def test_what_stays_unknown_is_lost() -> None:
    cluster = MadeUp([ObjectState.COMING, ObjectState.UNKNOWN, ObjectState.UNKNOWN], [LATE, LATE])
    with pytest.raises(Lost):
        got(cluster)
    assert cluster.timeouts == [SLICE, ON_THE_WAY]
