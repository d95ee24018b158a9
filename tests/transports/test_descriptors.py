"""Sockets under high descriptors, so that a process that is killed lets go of them before its memory."""

import resource
import socket

import pytest

from hoplite_ucx.transports.descriptors import lifted


@pytest.mark.parametrize("timeout", [None, 0.0, 1.5])
def test_a_socket_is_the_same_under_a_high_descriptor(timeout: float | None) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    one, other = socket.socketpair()
    one.settimeout(timeout)
    with lifted(one) as high, other:
        assert one.fileno() == -1
        assert high.fileno() >= min(soft * 3 // 4 - 3, 1 << 16)
        assert (high.family, high.type, high.gettimeout()) == (other.family, other.type, timeout)
        assert not high.get_inheritable()
        high.send(b"hello")
        assert other.recv(5) == b"hello"
        assert lifted(high) is high


def test_without_room_above_it_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 40, 1 << 40))
    monkeypatch.setattr("hoplite_ucx.transports.descriptors._HIGH", 1 << 30)
    with socket.socket() as sock:
        assert lifted(sock) is sock
