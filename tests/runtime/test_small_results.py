"""Small results between real processes: combined by the directory, there with the answer, and never out of date."""

import signal
import threading
from collections.abc import Callable

import numpy as np
import pytest

from hoplite_ucx.errors import InvalidRequestError, ObjectDeletedError
from hoplite_ucx.protocol.messages import Operation
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.objects import values
from hoplite_ucx.runtime.objects.kernels import combine_bytes
from hoplite_ucx.runtime.objects.layouts import MissingTypeError, unreadable
from hoplite_ucx.runtime.worker.connection import Connection
from hoplite_ucx.runtime.worker.refs import ObjectRef, new_ref
from tests.tools.here import agent_here, directory_here
from tests.tools.live import Host, Live, live_cluster
from tests.tools.loopback import own_address
from tests.tools.waiting import HANG, eventually

VALUES = [np.random.default_rng(seed).normal(size=100).astype(np.float32) for seed in range(6)]


def put_all(live: Live) -> list[ObjectRef]:
    return [live.hosts[index % len(live.hosts)].put(value) for index, value in enumerate(VALUES)]


def kept_by(host: Host) -> ObjectRef | None:
    """The result that this thread's next get returns without asking."""
    result = host.client._local.connection.result
    return None if result is None else ObjectRef(result.ref)


def objects_of(host: Host) -> int:
    count: int = host.status()["objects"]
    return count


def in_another_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(HANG)
    assert not thread.is_alive()


def raising(error: BaseException) -> Callable[..., bool]:
    def broken(*_: object) -> bool:
        raise error

    return broken


def with_result(host: Host, refs: list[ObjectRef]) -> ObjectRef:
    """A target whose bytes came with the answer: when it is asked for again, it is there."""
    target = host.reduce(refs, everywhere=True)
    host.get(target)
    assert host.reduce(refs, ref=target, everywhere=True) == target
    assert kept_by(host) == target
    return target


@pytest.mark.parametrize("op", [Operation.SUM, Operation.PROD, Operation.MEAN])
def test_every_host_gets_what_a_node_would_make(live: Live, op: Operation) -> None:
    refs = put_all(live)
    target = new_ref()
    for host in live.hosts:
        host.reduce(refs, op, ref=target, everywhere=True)
    order = [refs.index(ref) for ref in live.hosts[0].contributors(target)]
    parts = [values.encode(VALUES[index]) for index in order]
    divisor = len(parts) if op is Operation.MEAN else 0
    expected = combine_bytes(parts[0].layout, op, tuple(part.to_bytes() for part in parts), divisor)
    for host in live.hosts:
        assert host.get(target).tobytes() == expected
    live.hosts[0].delete(*refs)
    live.hosts[0].delete(target)


def test_dicts_with_keys_in_another_order(live: Live) -> None:
    one, other = live.hosts[0].put({"a": 1.0, "b": 2.0}), live.hosts[1].put({"b": 30.0, "a": 20.0})
    target = live.hosts[2].reduce([one, other])
    assert live.hosts[2].get(target) == {"a": 21.0, "b": 32.0}


def test_an_undefined_operation(live: Live) -> None:
    target = live.hosts[0].reduce(put_all(live), Operation.XOR)
    with pytest.raises(InvalidRequestError, match="xor is not defined for float32"):
        live.hosts[0].get(target)


def test_a_result_that_came_with_the_answer_is_got_without_the_agent(live: Live) -> None:
    host = live.hosts[0]
    target = with_result(host, put_all(live))
    host.agent.process.send_signal(signal.SIGSTOP)
    try:
        assert np.allclose(host.get(target), sum(VALUES))
    finally:
        host.agent.process.send_signal(signal.SIGCONT)
    assert np.allclose(host.get(target), sum(VALUES)), "from the agent: a result is kept for one get"


def test_a_result_that_another_host_deletes_is_not_returned(live: Live) -> None:
    host = live.hosts[0]
    target = with_result(host, put_all(live))
    held = objects_of(host)
    live.hosts[1].delete(target)
    in_another_thread(lambda: eventually(lambda: objects_of(host) < held))
    assert kept_by(host) == target, "nothing was read on this thread since"
    with pytest.raises(ObjectDeletedError):
        host.get(target)


def test_a_result_that_was_evicted_and_deleted_is_not_returned() -> None:
    """Of the delete of what it evicted an agent does not hear."""
    with live_cluster(2, memory=8 << 20) as live:
        host, other = live.hosts
        refs = put_all(live)
        target = with_result(host, refs)
        other.reduce(refs, ref=target, everywhere=True)
        eventually(lambda: objects_of(other) == 4)
        store = host.status()["memory"]
        in_another_thread(lambda: host.put(bytes(store["limit"] - store["used"] + 100)))
        other.delete(target)
        with pytest.raises(ObjectDeletedError):
            host.get(target)


def test_a_result_is_not_returned_before_all_that_the_agent_said_is_heard(live: Live) -> None:
    """Replies to calls that were given up may lie between."""
    host = live.hosts[0]
    value = host.put(bytes(30_000))
    target = with_result(host, put_all(live))
    held = objects_of(host)
    connection = host.client._local.connection
    for _ in range(20):
        connection.send(wire.GetRequest(connection.next_call(), value.binary, None))
    live.hosts[1].delete(target)
    in_another_thread(lambda: eventually(lambda: objects_of(host) < held))
    with pytest.raises(ObjectDeletedError):
        host.get(target)


def test_a_get_that_is_interrupted_while_it_hears_the_agent(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has read is lost, and so is the connection."""
    host = live.hosts[0]
    target = with_result(host, put_all(live))
    connection = host.client._local.connection
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "_read", raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            host.get(target)
    assert connection.broken
    assert np.allclose(host.get(target), sum(VALUES))


def test_a_result_outlives_its_directory() -> None:
    with live_cluster(2, host=own_address()) as live:
        refs = put_all(live)
        target = live.hosts[0].reduce(refs)
        assert np.allclose(live.hosts[0].get(target), sum(VALUES))
        live.kill_directory()
        live.restart_directory()
        assert np.allclose(live.hosts[1].get(target), sum(VALUES))


@pytest.mark.parametrize("problem", [ValueError("a fault of ours"), unreadable(MissingTypeError("bfloat16"))], ids=str)
def test_what_the_directory_cannot_combine_a_node_does(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    """A directory need not have ml_dtypes."""
    monkeypatch.setattr("hoplite_ucx.runtime.directory.server.combine_bytes", raising(problem))
    with directory_here() as (_, address), agent_here(address) as here:
        refs = [here.host.put(value) for value in VALUES]
        assert np.allclose(here.host.get(here.host.reduce(refs)), sum(VALUES))
