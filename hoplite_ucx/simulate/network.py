"""The virtual network: hosts, the bytes that flow between them, and the connections that carry messages.

It owns what a real network would decide: who gets how much of a NIC, when a message arrives, what a cut holds back.

- Flows move bytes. All active flows share each NIC they cross max-min fairly, within their own caps. Progress is
  exact: a completion is scheduled from the bytes left at the current rate, and scheduled again whenever that changes.
- Connections carry messages, in order within one connection; different connections may overtake each other.
- A cut works one way and loses nothing: flows stall, and messages wait, as TCP would retransmit them, until the heal.
  Only a reset loses what is under way.
- Everything follows from the calls made and from the clock. Callbacks run from the clock, never inside the call that
  causes them. Sets that are walked are dicts, because their order is part of the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf, isfinite
from typing import Any, Literal, TypeAlias, TypeVarTuple

from .clock import Clock, Handle

__all__ = ["Endpoint", "Flow", "HostName", "Network", "Reason"]

HostName: TypeAlias = int | str
Reason: TypeAlias = Literal["closed", "reset"]
Args = TypeVarTuple("Args")

# Demands are sums that were added to and subtracted from: so much is rounding.
_ENOUGH = 1 + 1e-9


class _Port:
    """One direction of a NIC, and the flows that hold a share of it."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.flows: dict[Flow, None] = {}
        self.demand = 0.0  # what its flows could take together, if only caps and empty ports limited them
        # Scratch of one progressive filling: capacity not given away yet, and the flows that still wait for a rate.
        self.room = 0.0
        self.unsettled = 0

    def is_contended(self) -> bool:
        """Whether its flows must share it. A port that has enough for all of them limits none."""
        return self.demand > self.capacity * _ENOUGH

    def forget_idle(self) -> None:
        """Idle flows lose their place, here and at their other port. That one needs no visit: a flow that runs dry at a
        contended port has both of its ports touched."""
        for flow in [flow for flow in self.flows if not flow._sending]:
            flow._detach()


class _Host:
    def __init__(self, up: float, down: float) -> None:
        self.up = _Port(up)
        self.down = _Port(down)
        self.isolated = False
        self.links: list[_Link] = []


class _Link:
    """An ordered pair of hosts: its latency, whether it is cut, and whom to tell when that changes."""

    def __init__(self, source: _Host, target: _Host, latency: float) -> None:
        self.source = source
        self.target = target
        self.latency = latency
        self.cut = False
        self.open = True
        self.flows: dict[Flow, None] = {}
        self.senders: dict[Endpoint, None] = {}  # those with something under way
        self.refresh()

    def refresh(self) -> None:
        """Work out anew whether anything passes, and stop or start what uses the link."""
        isolated = self.source is not self.target and (self.source.isolated or self.target.isolated)
        passes = not (self.cut or isolated)
        if passes != self.open:
            self.open = passes
            for flow in self.flows:
                flow._link_changed()
            for sender in list(self.senders):
                sender._link_changed()


class Flow:
    """Bytes from one host to another, in the order in which they were pushed.

    The head of the queue first pays the sender's overhead, then goes at the flow's rate. A flow that has run dry keeps
    its ports until somebody else needs them: a relay that gets one chunk at a time joins its NIC once, not per chunk.
    """

    def __init__(self, network: Network, link: _Link, up: _Port, down: _Port, cap: float) -> None:
        self.closed = False
        self._network = network
        self._clock = network.clock
        self._link = link
        self._up = up
        self._down = down
        self._cap = cap
        self._most = 0.0  # what it could take of its ports alone, while it holds a share of them
        self._queue: deque[tuple[float, Callable[..., object], tuple[Any, ...]]] = deque()
        self._timer: Handle | None = None  # the head's completion, or the end of its overhead
        self._sending = False  # the head's overhead is paid; its bytes go as fast as the ports let them
        self._joined = False  # holds a share of its ports
        self._rate = 0.0
        self._left = 0.0  # of the head's bytes, at the time `_since`
        self._since = 0.0
        self._done = 0.0
        link.flows[self] = None

    @property
    def rate(self) -> float:
        """Bytes per second now; 0 if the flow is idle or stalled."""
        self._network._rebalance()
        return self._rate if self._sending else 0.0

    @property
    def sent(self) -> float:
        """Bytes that have left the sender."""
        if not self._sending:
            return self._done
        return self._done + self._queue[0][0] - self._left_now()

    @property
    def backlog(self) -> int:
        """Pushes that have not left the sender whole."""
        return len(self._queue)

    @property
    def latency(self) -> float:
        return self._link.latency

    def push(self, nbytes: float, on_sent: Callable[[*Args], object], *args: *Args) -> None:
        """Queue bytes, and call `on_sent(*args)` when the last of them has left the sender; arrival is the caller's."""
        if self.closed:
            raise RuntimeError("push on a closed flow")
        if not 0 <= nbytes < inf:
            raise ValueError(f"cannot push {nbytes} bytes")
        queue = self._queue
        queue.append((nbytes, on_sent, args))
        if len(queue) == 1:
            self._begin()

    def close(self) -> None:
        """Drop what is queued, the rest of the head included. Nothing is called any more."""
        self._done = self.sent
        self.closed = True
        self._queue.clear()
        self._sending = False
        self._stop_timer()
        if self._joined:
            self._leave()
        self._link.flows.pop(self, None)

    def _begin(self) -> None:
        """A push has come to the head of the queue."""
        overhead = self._network.sender_overhead
        if overhead > 0:
            self._sending = False
            if self._joined:
                self._leave()
            self._timer = self._clock.after(overhead, self._send)
        else:
            self._send()

    def _send(self) -> None:
        """The head's bytes may go."""
        self._sending = True
        self._left = self._queue[0][0]
        self._since = self._clock.now
        if self._joined:
            self._schedule()
        else:
            self._timer = None
            if self._link.open:
                self._join()

    def _finish(self) -> None:
        """The head's last byte has left."""
        self._timer = None
        nbytes, on_sent, args = self._queue.popleft()
        self._done += nbytes
        if self._queue:
            self._begin()
        else:
            self._sending = False
            if self._is_contended():
                self._network._touch(self._up, self._down)
        on_sent(*args)

    def _join(self) -> None:
        self._up.flows[self] = self._down.flows[self] = None
        self._joined = True
        self._demand()
        if self._is_contended():
            self._network._touch(self._up, self._down)
        else:
            self._set_rate(self._most)

    def _demand(self) -> None:
        """Count in its ports what it could take of them."""
        up, down = self._up, self._down
        change = min(up.capacity, down.capacity, self._cap) - self._most
        self._most += change
        up.demand += change
        down.demand += change

    def _is_contended(self) -> bool:
        return self._up.is_contended() or self._down.is_contended()

    def _leave(self) -> None:
        if self._sending:
            self._set_rate(0.0)
        contended = self._is_contended()
        self._detach()
        if contended:
            self._network._touch(self._up, self._down)

    def _detach(self) -> None:
        for port in (self._up, self._down):
            del port.flows[self]
            port.demand = port.demand - self._most if port.flows else 0.0
        self._most = 0.0
        self._joined = False
        self._rate = 0.0

    def _set_rate(self, rate: float) -> None:
        """Count what went at the old rate, and finish the head at the new one."""
        if rate != self._rate:
            self._left = self._left_now()
            self._since = self._clock.now
            self._rate = rate
            self._stop_timer()
            self._schedule()

    def _left_now(self) -> float:
        return max(0.0, self._left - (self._clock.now - self._since) * self._rate)

    def _schedule(self) -> None:
        # Whether the head is done is never asked of `_left`, which rounding may leave a hair above zero:
        # the completion that was scheduled for the current rate decides.
        if self._rate > 0:
            self._timer = self._clock.at(self._since + self._left / self._rate, self._finish)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _link_changed(self) -> None:
        if self._link.open:
            if self._sending:
                self._join()
        elif self._joined:
            self._leave()


class _Closing:
    """The last thing on a connection: the other end is gone."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason


class Endpoint:
    """One end of a connection: what it sent and the network still carries, and what has arrived and waits here."""

    peer: Endpoint

    def __init__(self, network: Network, host: HostName, link: _Link) -> None:
        self.host = host
        self.closed = False
        self._network = network
        self._clock = network.clock
        self._link = link
        self._on_message: Callable[[Any], object] | None = None
        self._on_closed: Callable[[Reason], object] | None = None
        self._wire: deque[tuple[float, Any]] = deque()  # (arrival, message) on the way to the peer
        self._timer: Handle | None = None  # arrival of the first of them
        self._inbox: deque[Any] = deque()
        self._paused = False

    def attach(self, on_message: Callable[[Any], object], on_closed: Callable[[Reason], object]) -> None:
        """Say who gets what arrives here. What came before waits, like a connection not accepted yet."""
        self._on_message = on_message
        self._on_closed = on_closed
        self._wake()

    def send(self, message: Any) -> None:
        """Carry a message to the peer. As on a socket, what is sent after either end closed is lost without a word."""
        if not self.closed and not self.peer.closed:
            self._put(message)

    def close(self, *, reset: bool = True) -> None:
        """Close this end: nothing is delivered here any more, and the peer learns of it in time.

        A reset, also what the kernel does for a killed process, loses what is still on the way to the peer;
        a graceful close comes after it.
        """
        if self.closed:
            return
        self._shut()
        self.peer._abandon()
        if reset:
            self._abandon()
        if not self.peer.closed:
            self._put(_Closing("reset" if reset else "closed"))

    def pause(self) -> None:
        """The process stops: what arrives waits for `resume`."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._wake()

    def _put(self, message: Any) -> None:
        arrival = self._clock.now + self._link.latency
        jitter = self._network.jitter
        if jitter is not None:
            arrival += jitter()
        self._wire.append((arrival, message))
        if len(self._wire) == 1:
            self._link.senders[self] = None
            if self._link.open:
                self._timer = self._clock.at(arrival, self._arrive)

    def _arrive(self) -> None:
        """The first message on the wire has reached the peer's host."""
        wire = self._wire
        _, message = wire.popleft()
        if wire:
            # Only the first has a timer, so that none overtakes another: one that was faster arrives together with it.
            self._timer = self._clock.at(wire[0][0], self._arrive)
        else:
            self._timer = None
            del self._link.senders[self]
        self.peer._inbox.append(message)
        self.peer._deliver()

    def _deliver(self) -> None:
        inbox = self._inbox
        while inbox and not self._paused and self._on_message is not None and self._on_closed is not None:
            message = inbox.popleft()
            if type(message) is _Closing:
                self._shut()
                self._on_closed(message.reason)
            else:
                self._on_message(message)

    def _wake(self) -> None:
        if self._inbox:
            self._clock.after(0, self._deliver)

    def _shut(self) -> None:
        self.closed = True
        self._inbox.clear()

    def _abandon(self) -> None:
        """Lose what is on the way to the peer."""
        self._wire.clear()
        self._link.senders.pop(self, None)
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _link_changed(self) -> None:
        if self._link.open:
            # Everything that the cut held back is sent again now, in its order.
            held = list(self._wire)
            self._abandon()
            for _, message in held:
                self._put(message)
        else:
            self._stop_timer()


class Network:
    """Hosts and the links between all of them. Rates are bytes per second, times are seconds."""

    def __init__(
        self,
        clock: Clock,
        latency: float,
        *,
        local_latency: float = 10e-6,
        memory_rate: float = 10e9,
        sender_overhead: float = 0.0,
        jitter: Callable[[], float] | None = None,
    ) -> None:
        """`local_latency` and `memory_rate` hold within a host, where a flow crosses no NIC and shares with nobody.

        `sender_overhead` occupies a flow, but no NIC, before the bytes of each push. `jitter` gives the extra delay of
        each message.
        """
        self.clock = clock
        self.default_latency = _checked("latency", latency)
        self.local_latency = _checked("local latency", local_latency)
        self.memory_rate = _checked("memory rate", memory_rate)
        self.sender_overhead = _checked("sender overhead", sender_overhead)
        self.jitter = jitter
        self._hosts: dict[HostName, _Host] = {}
        self._links: dict[tuple[HostName, HostName], _Link] = {}
        self._touched: dict[_Port, None] = {}

    # Hosts and links

    def add_host(self, name: HostName, up: float, down: float) -> None:
        if name in self._hosts:
            raise ValueError(f"host {name!r} exists")
        self._hosts[name] = _Host(_checked("up", up), _checked("down", down))

    def set_rate(self, host: HostName, up: float, down: float) -> None:
        """Change a NIC at run time; what flows through it goes on at the new rates."""
        nic = self._hosts[host]
        nic.up.capacity = _checked("up", up)
        nic.down.capacity = _checked("down", down)
        for flow in (*nic.up.flows, *nic.down.flows):
            flow._demand()
        self._touch(nic.up, nic.down)

    def latency(self, source: HostName, target: HostName) -> float:
        """Seconds one way."""
        return self._link(source, target).latency

    def set_latency(self, source: HostName, target: HostName, seconds: float) -> None:
        """For what is sent from now on."""
        self._link(source, target).latency = _checked("latency", seconds)

    def is_open(self, source: HostName, target: HostName) -> bool:
        """Whether anything passes from one host to the other: neither cut nor isolated."""
        return self._link(source, target).open

    def cut(self, source: HostName, target: HostName) -> None:
        """Let nothing pass that way until `heal`: what is under way is held back too."""
        self._set_cut(source, target, True)

    def heal(self, source: HostName, target: HostName) -> None:
        """Undo `cut`. An isolated host stays isolated."""
        self._set_cut(source, target, False)

    def isolate(self, host: HostName) -> None:
        """Cut a host off from all others, both ways, also from those added later."""
        self._set_isolated(host, True)

    def restore(self, host: HostName) -> None:
        """Undo `isolate`. Links that were cut one by one stay cut."""
        self._set_isolated(host, False)

    # What travels

    def open_flow(self, source: HostName, target: HostName, cap: float = inf) -> Flow:
        if not cap >= 0:
            raise ValueError(f"a flow cannot have the cap {cap}")
        link = self._link(source, target)
        if source == target:
            return Flow(self, link, _Port(self.memory_rate), _Port(self.memory_rate), cap)
        return Flow(self, link, link.source.up, link.target.down, cap)

    def connect(self, a: HostName, b: HostName) -> tuple[Endpoint, Endpoint]:
        """A connection that is established at once; its two ends, the one on `a` first."""
        left = Endpoint(self, a, self._link(a, b))
        right = Endpoint(self, b, self._link(b, a))
        left.peer, right.peer = right, left
        return left, right

    # The inside

    def _link(self, source: HostName, target: HostName) -> _Link:
        link = self._links.get((source, target))
        if link is None:
            ends = self._hosts[source], self._hosts[target]
            link = _Link(*ends, self.local_latency if source == target else self.default_latency)
            self._links[source, target] = link
            for host in ends:
                host.links.append(link)
        return link

    def _set_cut(self, source: HostName, target: HostName, cut: bool) -> None:
        if source == target:
            raise ValueError("a host cannot be cut off from itself")
        link = self._link(source, target)
        link.cut = cut
        link.refresh()

    def _set_isolated(self, name: HostName, isolated: bool) -> None:
        host = self._hosts[name]
        host.isolated = isolated
        for link in host.links:
            link.refresh()

    def _touch(self, *ports: _Port) -> None:
        """These ports must be shared anew before time goes on.

        That waits until the end of the instant, since a relay with many children, or a fair share that ends for
        all at once, would else share the same ports again for each of them.
        """
        if not self._touched:
            self.clock.after(0, self._rebalance)
        for port in ports:
            self._touched[port] = None

    def _rebalance(self) -> None:
        """Give all flows their fair rate that share ports, directly or through others, with those touched."""
        if self._touched:
            touched, self._touched = self._touched, {}
            for port in touched:
                port.forget_idle()
            seen: set[_Port] = set()
            for port in touched:
                for start in (port, *(other for flow in port.flows for other in (flow._up, flow._down))):
                    if start not in seen and start.is_contended():
                        ports, flows = _component(start, seen)
                        for flow, rate in _fair_rates(ports, flows).items():
                            flow._set_rate(rate)
                for flow in port.flows:
                    if not flow._is_contended():
                        flow._set_rate(flow._most)


def _component(start: _Port, seen: set[_Port]) -> tuple[list[_Port], list[Flow]]:
    """The contended ports that are connected with one, through others of them, and their active flows. A port that has
    enough for all limits no flow, whatever the others do, so that nothing beyond it changes."""
    ports = [start]
    seen.add(start)
    flows: dict[Flow, None] = {}
    for port in ports:
        port.forget_idle()
        for flow in port.flows:
            flows[flow] = None
            for other in (flow._up, flow._down):
                if other not in seen and other.is_contended():
                    seen.add(other)
                    ports.append(other)
    return ports, list(flows)


def _fair_rates(ports: list[_Port], flows: list[Flow]) -> dict[Flow, float]:
    """Max-min fairness by progressive filling: all rates rise together, and each stops at the first limit it meets."""
    rates: dict[Flow, float] = {}
    for flow in flows:
        for port in (flow._up, flow._down):
            port.room, port.unsettled = inf, len(port.flows)  # a port that is not contended
    for port in ports:
        port.room = port.capacity
        port.unsettled = len(port.flows)
    while flows:
        level = min(port.room / port.unsettled for port in ports if port.unsettled)
        # Caps first: a flow held by its cap leaves the others of its ports more than this level.
        stopped = [flow for flow in flows if flow._most <= level] or [
            flow
            for flow in flows
            if flow._up.room / flow._up.unsettled <= level or flow._down.room / flow._down.unsettled <= level
        ]
        for flow in stopped:
            rates[flow] = rate = min(flow._most, level)
            for port in (flow._up, flow._down):
                port.room = max(0.0, port.room - rate)
                port.unsettled -= 1
        flows = [flow for flow in flows if flow not in rates]
    return rates


def _checked(what: str, value: float) -> float:
    if not (isfinite(value) and value >= 0):
        raise ValueError(f"{what} must be finite and not negative, not {value}")
    return value
