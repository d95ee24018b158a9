"""Which transport a link uses, and why. A pure choice from the configuration, the machine, recent failures and
measurements.

In this order: the first rule that matches the peer; otherwise `links.transport`. A transport that failed on the link
recently is skipped for a while. Of the rest the fastest is used, according to the link's own streams (see
`link_measures`):

- `auto` has RDMA, if this host has it, and TCP. Before any measurement RDMA counts with the rate of its ports.
- `fastest` also has UCX as configured: over its own TCP it is faster than plain sockets on some machines and
  slower on others. Each way carries a few long streams of the link until it is measured.

Streams into memory of a GPU are chosen for and measured apart from the others: some ways pass such memory on as it is,
others stage it (see `device_paths`), and how fast either is depends on where GPUs and cards are.

A link stays with its way unless another is faster by a clear margin, and for a while after each change, so that it
never alternates between two. A way that is not available falls back to TCP, unless it is required. Every choice keeps
its reason, for `hoplite links`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from hoplite_ucx.transports.configuration import Configuration, ConfigurationError, Kind, Rule
from hoplite_ucx.transports.detection import LinkHardware
from hoplite_ucx.transports.device_paths import device_path, supposed_for_devices
from hoplite_ucx.transports.link_measures import ENOUGH, LEAST, Estimate, Rates, Way
from hoplite_ucx.transports.ucx.settings import UcxSettings
from hoplite_ucx.transports.wire.addresses import parse_address

__all__ = ["Choice", "Selection"]

# A link changes only to a way that is this many times as fast, and only this long after its last change.
_MARGIN = 1.25
_SETTLED_SECONDS = 30.0
# A link that fails again and again is tried ever more seldom, up to so many times the configured pause.
_MOST_COOLDOWNS = 16
# Before any measurement: plain sockets are preferred to UCX's own TCP, which costs more per piece.
_TCP = Estimate(1e9, 1e-4)
_UCX = Estimate(1e9, 5e-4)
_RDMA_DELAY = 2e-5
_RDMA_RATE = 100e9 / 8  # of ports whose rate the kernel does not tell


@dataclass(frozen=True, slots=True)
class Choice:
    """`ucx` is None for TCP; `fixed` says that nothing else may be used instead."""

    ucx: UcxSettings | None
    reason: str
    fixed: bool = False

    @property
    def transport(self) -> str:
        return "tcp" if self.ucx is None else "ucx"


@dataclass(frozen=True, slots=True)
class _Failure:
    until: float
    pause: float
    why: str


class Selection:
    """The choices of one node. Raises a `ConfigurationError` if what is required is not there."""

    def __init__(self, configuration: Configuration, machine: LinkHardware, clock: Callable[[], float]) -> None:
        self._configuration = configuration
        self._machine = machine
        self._clock = clock
        self._devices = frozenset(name.partition(":")[0] for name in machine.active_ports)
        self._failures: dict[int, _Failure] = {}
        self.unusable: dict[UcxSettings, str] = {}
        """What UCX did not start with, though this machine should have it, and why."""
        self._rates = Rates(self._supposed)
        self._settled: dict[tuple[int, bool], tuple[Way, float]] = {}  # what a link uses, and since it changed to it
        self._check_required()

    def choose(self, peer: int, address: str, size: int = 0, *, to_device: bool = False) -> Choice:
        """`size` is the stream's size: short streams are not used for measuring. `to_device` is whether it goes into
        memory of a GPU."""
        choice = self._choose(peer, address, size, to_device)
        if not to_device:
            return choice
        return replace(choice, reason=f"{choice.reason}; memory of GPUs {device_path(choice.ucx, self._machine)}")

    def _choose(self, peer: int, address: str, size: int, to_device: bool) -> Choice:
        configuration = self._configuration
        host, _ = parse_address(address)
        rule = next((rule for rule in configuration.rules if rule.fits(host, self._devices)), None)
        kind = rule.transport if rule is not None else configuration.transport
        why = rule.name if rule is not None else f"links.transport = {kind.value!r} of {configuration.place}"
        if configuration.require is not None:
            return self._required(configuration.require, rule)
        if kind is Kind.TCP:
            return Choice(None, why)
        missing = self._missing(kind)
        if missing is None and kind is Kind.AUTO:
            missing = self.unusable.get(self._settings(kind, rule))
        if missing is not None:
            return Choice(None, f"{missing}; tcp instead" if kind is not Kind.AUTO else missing)
        if (failure := self._failed(peer)) is not None:
            return Choice(None, f"ucx failed on this link recently ({failure}); tcp for now")
        if kind in (Kind.AUTO, Kind.FASTEST):
            return self._fastest(peer, self._ways(kind, rule), size if kind is Kind.FASTEST else 0, to_device)
        return Choice(self._settings(kind, rule), why)

    def measured(self, peer: int, way: Way, sample: tuple[int, float, float], *, to_device: bool = False) -> None:
        """What a stream of this peer showed: bytes, seconds, and the delay before."""
        self._rates.add(peer, way, to_device, *sample)

    def failed(self, peer: int, why: Exception) -> None:
        """A UCX link with this peer broke, or could not be made. It was tried in vain if it had failed before."""
        now, pause = self._clock(), self._configuration.cooldown
        if (before := self._failures.get(peer)) is not None:
            pause = before.pause if now < before.until else min(2 * before.pause, _MOST_COOLDOWNS * pause)
        self._failures[peer] = _Failure(now + pause, pause, str(why))

    def worked(self, peer: int) -> None:
        """A UCX link with this peer carried a whole stream."""
        self._failures.pop(peer, None)

    def does_not_start(self, settings: UcxSettings, why: Exception) -> bool:
        """UCX does not start so. True if links do without it; False if somebody asked for nothing else."""
        if any(settings in self._ways(kind, rule) for kind, rule in self._asked() if kind in (Kind.UCX, Kind.RDMA)):
            return False
        self.unusable[settings] = str(why)
        return True

    @property
    def has_ucx(self) -> bool:
        """Whether UCX can be used here at all, and may be."""
        return not self._machine.ucx.failure and self._configuration.require is not Kind.TCP

    def ucx_settings(self) -> list[UcxSettings]:
        """Every way of using UCX that a peer may ask for: those that a choice here may come to, and the default."""
        return list(dict.fromkeys([*self.chosen_settings(), self._configuration.ucx]))

    def chosen_settings(self) -> list[UcxSettings]:
        """Every way of using UCX that a choice here may come to. The default is not among them unless a link gets it:
        it has no RDMA, and may have none of the devices that are named."""
        ways = [way for kind, rule in self._asked() for way in self._ways(kind, rule) if way is not None]
        return list(dict.fromkeys(ways))

    def _asked(self) -> list[tuple[Kind, Rule | None]]:
        """What the configuration asks for, of any link."""
        configuration = self._configuration
        rules = [(rule.transport, rule) for rule in configuration.rules]
        asked = [(configuration.transport, None), *rules]
        return asked if configuration.require is None else [(configuration.require, rule) for _, rule in asked]

    def device_paths(self) -> dict[str, str]:
        """How memory of GPUs travels, by what links may use here; nothing if there are none."""
        ways = [*(self.chosen_settings() if self.has_ucx else []), None] if self._machine.gpus.devices else []
        return {_name(way): str(device_path(way, self._machine)) for way in ways}

    @property
    def compares(self) -> bool:
        """Whether measurements influence any choice."""
        configuration = self._configuration
        kinds = {configuration.transport, *(rule.transport for rule in configuration.rules)}
        return self.has_ucx and configuration.require is None and not kinds.isdisjoint({Kind.AUTO, Kind.FASTEST})

    def _ways(self, kind: Kind, rule: Rule | None) -> list[Way]:
        """Those that a link has to choose from, the best by assumption first."""
        ways: list[Way] = []
        if self._machine.rdma and kind in (Kind.AUTO, Kind.RDMA, Kind.FASTEST):
            ways.append(self._settings(Kind.RDMA, rule))
        if kind in (Kind.UCX, Kind.FASTEST):
            ways.append(self._settings(Kind.UCX, rule))
        return [*(way for way in dict.fromkeys(ways) if way not in self.unusable), None]

    def _fastest(self, peer: int, ways: list[Way], size: int, to_device: bool) -> Choice:
        """The fastest way, unless one is not measured yet and the stream is long enough to measure it."""
        known = {way: self._rates.estimate(peer, way, to_device) for way in ways}
        if size >= LEAST:
            unknown = min(ways, key=lambda way: known[way].samples)
            if known[unknown].samples < ENOUGH:
                number = known[unknown].samples + 1
                return Choice(unknown, f"measuring {_name(unknown)} on this link, stream {number} of {ENOUGH}")
        best = min(ways, key=lambda way: known[way].cost)
        now = self._clock()
        current, since = self._settled.get((peer, to_device), (best, -math.inf))
        if current in known and known[current].samples:  # an unmeasured way is not preferred to a measured one
            best = min((way for way in ways if known[way].samples), key=lambda way: known[way].cost)
        if current in known and current != best:
            clear = known[current].cost > _MARGIN * known[best].cost
            if not clear or now - since < _SETTLED_SECONDS:
                best = current
        self._settled[peer, to_device] = best, since if best == current else now
        told = "; ".join(f"{_name(way)}: {known[way]}" for way in ways)
        return Choice(best, f"the fastest: {told}" if len(ways) > 1 else told)

    def _supposed(self, way: Way, to_device: bool) -> Estimate:
        supposed = self._supposed_for_host(way)
        return supposed_for_devices(way, supposed, self._machine) if to_device else supposed

    def _supposed_for_host(self, way: Way) -> Estimate:
        if way is None:
            return _TCP
        if way.private_workers:
            return _UCX
        ports = [port for device in self._machine.devices for port in device.ports if port.active]
        return Estimate(sum(port.rate for port in ports) / 8 or _RDMA_RATE, _RDMA_DELAY)

    def _failed(self, peer: int) -> str | None:
        failure = self._failures.get(peer)
        return failure.why if failure is not None and self._clock() < failure.until else None

    def _missing(self, kind: Kind) -> str | None:
        """Why this kind is not available here; None if it is."""
        machine = self._machine
        if kind in (Kind.UCX, Kind.FASTEST) and not machine.ucx.failure:
            return None
        missing = machine.without_rdma()
        return None if missing is None else missing[0]

    def _required(self, required: Kind, rule: Rule | None) -> Choice:
        why = f"links.require = {required.value!r} of {self._configuration.place}"
        if required is Kind.TCP:
            return Choice(None, why, fixed=True)
        return Choice(self._settings(required, rule), why, fixed=True)

    def _settings(self, kind: Kind, rule: Rule | None) -> UcxSettings:
        if rule is not None and rule.ucx is not None:
            return rule.ucx
        return self._configuration.ucx if kind is Kind.UCX else self._configuration.rdma_settings()

    def _check_required(self) -> None:
        required, place = self._configuration.require, self._configuration.place
        if required is None or required is Kind.TCP or self._missing(required) is None:
            return
        if (missing := self._machine.without_rdma()) is not None:
            problem, remedy = (
                f"{required.value!r} is not available: {missing[0]}",
                f"{missing[1]}, or leave require out",
            )
            raise ConfigurationError(place, "links.require", problem, remedy)


def _name(way: Way) -> str:
    return "tcp" if way is None else f"ucx {'+'.join(way.tls)}"
