"""Links that each get their transport: UCX where a rule says so, TCP elsewhere and where UCX cannot be had."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import msgspec
import pytest

from hoplite_ucx.transports.configuration import Configuration, Kind
from hoplite_ucx.transports.detection import LinkHardware, ucx_build
from hoplite_ucx.transports.interface import Fault, LinkLost, Side
from hoplite_ucx.transports.mixed_transport import MixedTransport
from hoplite_ucx.transports.selection import Selection
from hoplite_ucx.transports.testing.conformance import CHECKS, Maker
from hoplite_ucx.transports.testing.conformance.tools import Receiving, Serving, filled, wait_until
from hoplite_ucx.transports.testing.endpoint import ListeningEndpoint
from hoplite_ucx.transports.ucx.settings import DisagreementError, Greeting, UcxSettings
from hoplite_ucx.transports.ucx.worker import Worker
from hoplite_ucx.transports.wire.handshake import Identity
from tests.tools.links import run_check

pytestmark = pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'")

SIZE = 2 << 20


class SelectingEndpoint(ListeningEndpoint[MixedTransport]):
    """Asks for UCX, and has it."""

    configuration = Configuration(transport=Kind.UCX, cooldown=0.2)

    def __init__(
        self,
        node: int,
        token: bytes = b"",
        *,
        on_lost: LinkLost | None = None,
        configuration: Configuration | None = None,
    ) -> None:
        me = Identity(node, token)
        machine = LinkHardware((), ucx_build(), -1, -1)
        selection = Selection(configuration or self.configuration, machine, time.monotonic)
        super().__init__(me, MixedTransport(me, selection, on_lost))


@contextmanager
def nodes(*configurations: Configuration, lost: list[Exception] | None = None) -> Iterator[list[SelectingEndpoint]]:
    told = lost if lost is not None else []
    made = [
        SelectingEndpoint(number, configuration=configuration, on_lost=lambda *why: told.append(why[2]))
        for number, configuration in enumerate(configurations, 1)
    ]
    try:
        yield made
    finally:
        ended = [end.close() for end in made]
    assert all(ended)


def transfer(sender: SelectingEndpoint, receiver: SelectingEndpoint, number: int) -> None:
    key = (receiver.node, number)
    outgoing = Serving(sender, receiver.node, key, filled(number, SIZE), SIZE)
    Receiving(receiver, sender.node, sender.address, key, SIZE).complete(number)
    outgoing.wait()


def used(end: SelectingEndpoint, peer: int, side: Side = Side.RECEIVING) -> set[str]:
    return {link.transport for link in end.transport.links() if link.peer == peer and link.side is side and link.bytes}


# The rest of the suite differs in nothing but the transport below, and runs there.
_CHECKS = [
    check
    for check in CHECKS
    if check.__name__.removeprefix("check_")
    in {"order", "odd_sizes", "zero_length", "relay", "resume", "cancel_early", "cancel_serve",
        "bad_calls", "close", "sender_killed", "receiver_killed", "nobody_there", "wrong_token", "storm"}
]  # fmt: skip


@pytest.mark.parametrize("check", _CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_conformance(monkeypatch: pytest.MonkeyPatch, check: Callable[[Maker], None]) -> None:
    run_check(monkeypatch, check, SelectingEndpoint)


UCX = Configuration(transport=Kind.UCX)
TCP = Configuration(transport=Kind.TCP)


def test_the_receiver_chooses_for_each_link() -> None:
    with nodes(UCX, TCP, UCX) as (a, b, c):
        for number, (sender, receiver) in enumerate([(a, b), (b, a), (a, c), (b, c), (c, b)]):
            transfer(sender, receiver, number)
        assert used(b, a.node) == used(b, c.node) == {"tcp"}
        assert used(a, b.node) == used(c, a.node) == used(c, b.node) == {"ucx"}
        assert "links.transport = 'ucx'" in c.transport.reasons()[a.node]
        assert c.transport.lanes()[a.node, Side.RECEIVING] == ["tcp/lo"]


def test_a_link_is_opened_ahead_over_the_transport_that_a_stream_would_get() -> None:
    with nodes(UCX, TCP) as (a, b):
        a.transport.prepare(b.node, b.address)
        b.transport.prepare(a.node, a.address)
        for end, peer, transport in ((a, b, "ucx"), (b, a, "tcp")):
            wait_until(
                lambda end=end: any(link.connected and link.side is Side.RECEIVING for link in end.transport.links()),
                "the link is there",
            )
            (link,) = [link for link in end.transport.links() if link.side is Side.RECEIVING]
            assert (link.peer, link.transport, link.bytes) == (peer.node, transport, 0)
        transfer(b, a, 1)
        assert used(a, b.node) == {"ucx"}


def test_a_link_that_cannot_be_opened_ahead_is_told_and_replaced() -> None:
    lost: list[Exception] = []
    other = Configuration(transport=Kind.UCX, ucx=UcxSettings(segment=64 << 10))
    with nodes(UCX, other, lost=lost) as (a, b):
        b.transport.prepare(a.node, a.address)
        wait_until(lambda: len(lost) == 2, "both sides tell")
        transfer(a, b, 1)
        assert used(b, a.node) == {"tcp"}
        b.transport.prepare(a.node, "nowhere")  # no address: nothing happens


@pytest.mark.parametrize("configuration", [UCX, TCP], ids=["ucx", "tcp"])
def test_a_key_that_is_in_use_is_refused_and_its_stream_goes_on(configuration: Configuration) -> None:
    """A key is used once; one that were used again must not take down the stream that has it."""
    with nodes(UCX, configuration) as (a, b):
        key, source = (b.node, 1), filled(1, SIZE, watermark=SIZE // 2)
        outgoing = Serving(a, b.node, key, source, SIZE)
        incoming = Receiving(b, a.node, a.address, key, SIZE)
        wait_until(lambda: incoming.position == SIZE // 2, "it runs")
        with pytest.raises(ValueError, match="already being received"):
            Receiving(b, a.node, a.address, key, SIZE)
        with pytest.raises(ValueError, match="already being served"):
            Serving(a, b.node, key, filled(2, SIZE), SIZE)
        source.rise(SIZE)
        incoming.complete(1)
        outgoing.wait()
        transfer(a, b, 2)


def test_settings_that_differ_fall_back_to_tcp_at_once() -> None:
    lost: list[Exception] = []
    other = Configuration(transport=Kind.UCX, ucx=UcxSettings(segment=64 << 10))
    with nodes(UCX, other, lost=lost) as (a, b):
        transfer(a, b, 1)
        transfer(a, b, 2)
        assert used(b, a.node) == {"tcp"}
        assert "segment is" in b.transport.reasons()[a.node]
        assert {type(error) for error in lost} == {DisagreementError}


@pytest.mark.parametrize("older", [Side.RECEIVING, Side.SENDING])
def test_releases_with_other_records_fall_back_to_tcp_at_once(monkeypatch: pytest.MonkeyPatch, older: Side) -> None:
    """Only the receiver's greeting has a tag; one of an older release says nothing of its records."""
    greeting = Worker.greeting

    def told(self: Worker, tag: int = 0) -> Greeting:
        side = Side.RECEIVING if tag else Side.SENDING
        return msgspec.structs.replace(greeting(self, tag), records=1) if side is older else greeting(self, tag)

    monkeypatch.setattr(Worker, "greeting", told)
    lost: list[Exception] = []
    with nodes(UCX, UCX, lost=lost) as (a, b):
        transfer(a, b, 1)
        assert used(b, a.node) == {"tcp"}
        assert "version of the link's records is" in b.transport.reasons()[a.node]
        assert DisagreementError in {type(error) for error in lost}


def test_what_is_required_is_not_replaced() -> None:
    required = Configuration(require=Kind.UCX, ucx=UcxSettings(segment=64 << 10))
    with nodes(UCX, required) as (a, b):
        Serving(a, b.node, (2, 1), filled(1, SIZE), SIZE)
        assert Receiving(b, a.node, a.address, (2, 1), SIZE).wait() == (0, Fault.BROKEN)


def test_a_peer_that_does_not_use_ucx() -> None:
    with nodes(Configuration(require=Kind.TCP), UCX) as (a, b):
        transfer(a, b, 1)
        assert used(b, a.node) == {"tcp"}
        assert "UCX is not used there" in b.transport.reasons()[a.node]


def test_settings_of_a_rule_find_their_like() -> None:
    both = Configuration(transport=Kind.UCX, ucx=UcxSettings(tls=("posix",)))
    with nodes(both, both) as (a, b):
        transfer(a, b, 1)
        assert b.transport.lanes()[a.node, Side.RECEIVING] == ["posix/memory"]


def test_a_link_that_breaks_in_mid_object_goes_on_over_tcp() -> None:
    size = 64 << 20
    with nodes(UCX, UCX) as (a, b):
        source = filled(5, size, watermark=size // 2)
        outgoing = Serving(a, b.node, (2, 1), source, size, granule=1 << 20)
        incoming = Receiving(b, a.node, a.address, (2, 1), size, granule=1 << 20)
        wait_until(lambda: incoming.memory.watermark() == size // 2, "half of it")
        ucx = next(iter(a.transport._ucx.values()))
        ucx.drop(b.node)  # UCX alone, on the sender's side
        watermark, fault = incoming.wait()
        outgoing.wait()
        assert (watermark, fault) == (size // 2, Fault.BROKEN)
        source.rise(size)
        again = Receiving(b, a.node, a.address, (2, 2), size, offset=watermark, granule=1 << 20, memory=incoming.memory)
        Serving(a, b.node, (2, 2), source, size, offset=watermark, granule=1 << 20)
        wait_until(lambda: incoming.memory.watermark() > watermark, "it goes on")
        again.complete(5)
        assert used(b, a.node) >= {"tcp"}
        assert "failed on this link recently" in b.transport.reasons()[a.node]


def test_a_stream_that_is_completed_over_ucx_ends_the_pauses_that_grew() -> None:
    with nodes(UCX, Configuration(transport=Kind.UCX, cooldown=0)) as (a, b):
        selection = b.transport._selection
        selection.failed(a.node, OSError("it broke"))
        Serving(a, b.node, (2, 1), filled(5, SIZE), SIZE)
        cancelled = Receiving(b, a.node, a.address, (2, 2), SIZE)
        cancelled.cancel()
        cancelled.wait()
        assert selection._failures, "a cancelled stream shows nothing"
        Receiving(b, a.node, a.address, (2, 1), SIZE).complete(5)
        assert not selection._failures


def test_the_fastest_is_found_by_the_streams_themselves() -> None:
    """Every long stream is measured, over each transport in turn; then the link stays with one."""
    with nodes(UCX, Configuration(transport=Kind.FASTEST)) as (a, b):
        size = 16 << 20
        for number in range(10):
            outgoing = Serving(a, b.node, (b.node, number), filled(number, size), size, granule=1 << 20)
            Receiving(b, a.node, a.address, (b.node, number), size, granule=1 << 20).complete(number)
            outgoing.wait()
        carried = {link.transport: link.bytes for link in b.transport.links() if link.side is Side.RECEIVING}
        assert min(carried["tcp"], carried["ucx"]) == 3 * size
        assert max(carried["tcp"], carried["ucx"]) == 7 * size
        reason = b.transport.reasons()[a.node]
        assert reason.startswith("the fastest: ucx tcp: ")
        assert reason.count("measured") == 2
