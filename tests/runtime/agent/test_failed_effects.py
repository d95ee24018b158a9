"""Effects that the agent cannot perform: whoever waits for them hears so at once, and the agent goes on."""

from collections.abc import Callable

import numpy as np
import pytest

from hoplite_ucx.errors import HopliteError, InternalError, StoreFullError
from hoplite_ucx.protocol.events import Combine, CombineBytes, DeleteDone, Got, PutReady, Receive, Serve
from tests.tools.here import agent_here
from tests.tools.live import live_cluster

LARGE = np.arange(1 << 20, dtype=np.float64)
SMALL = np.arange(16, dtype=np.float64)
MANY = {f"array {number}": np.arange(2.0) for number in range(64)}
"""Small, and too much work for the directory."""


def fails(call: Callable[[], object], kind: type[HopliteError]) -> HopliteError:
    """It ends with this error, and not because its time is up."""
    with pytest.raises(kind) as caught:
        call()
    assert not isinstance(caught.value, TimeoutError)
    assert caught.value.remedy
    return caught.value


def test_calls_behind_an_effect_that_fails_are_told() -> None:
    with live_cluster(1) as live, agent_here(live.address) as here:
        far, host = live.hosts[0], here.host
        large, small = far.put(LARGE), far.put(SMALL)

        perform = dict(here.agent._perform)
        here.breaks(Receive, ValueError("a fault of ours"))
        error = fails(lambda: host.get(large), InternalError)
        assert "a fault of ours" in str(error)
        here.agent._perform.update(perform)
        assert np.array_equal(host.get(large), LARGE)

        for effect, call in {
            Got: lambda: host.get(large),
            PutReady: lambda: host.put(LARGE),
            DeleteDone: lambda: host.delete(small),
        }.items():
            here.breaks(effect, OSError("no descriptor"))
            assert "no descriptor" in str(fails(call, StoreFullError))
            here.agent._perform.update(perform)

        assert np.array_equal(host.get(host.put(LARGE * 2)), LARGE * 2)


@pytest.mark.parametrize(("effect", "value"), [(Combine, LARGE), (CombineBytes, MANY)])
def test_a_reduction_that_a_node_cannot_make_fails(effect: type, value: object) -> None:
    with live_cluster(1) as live, agent_here(live.address) as here:
        refs = [here.host.put(value), here.host.put(value)]
        here.breaks(effect, ValueError("a fault of ours"))
        target = here.host.reduce(refs)
        assert "a fault of ours" in str(fails(lambda: here.host.get(target), HopliteError))


def test_a_stream_that_cannot_be_served_is_asked_for_again() -> None:
    with live_cluster(1) as live, agent_here(live.address) as here:
        ref = here.host.put(LARGE)
        here.breaks(Serve, ValueError("a fault of ours"), times=1)
        assert np.array_equal(live.hosts[0].get(ref), LARGE)


def test_an_event_that_the_machine_cannot_handle_fails_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with live_cluster(1) as live, agent_here(live.address) as here:
        ref = live.hosts[0].put(LARGE)

        def broken(_: object) -> None:
            raise AssertionError("a fault of ours")

        monkeypatch.setattr(here.agent.machine.calls, "get", broken)
        fails(lambda: here.host.get(ref), InternalError)
        monkeypatch.undo()
        assert np.array_equal(here.host.get(ref), LARGE)
