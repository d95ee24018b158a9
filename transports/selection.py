"""Which transport a link uses, and why. A pure choice: what is configured, what this machine has, what failed lately.

In this order: the first rule that fits the peer; else `links.transport`. A transport that failed on the link lately is
skipped for a while; `auto` takes UCX if it finds RDMA here, else TCP. (UCX's own TCP is never taken by itself: it is
faster than plain sockets on some machines and slower on others.) Whatever cannot be had falls back to TCP, unless it is
required. Every choice keeps its reason, for `hoplite links`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hoplite_ucx.transports.addresses import parse_address
from hoplite_ucx.transports.configuration import Configuration, ConfigurationError, Kind, Rule
from hoplite_ucx.transports.detection import VERBS_REMEDY, Machine
from hoplite_ucx.transports.ucx.settings import UcxSettings

__all__ = ["Choice", "Selection"]


@dataclass(frozen=True, slots=True)
class Choice:
    """`ucx` is None for TCP; `fixed` says that nothing else may be used instead."""

    ucx: UcxSettings | None
    reason: str
    fixed: bool = False

    @property
    def transport(self) -> str:
        return "tcp" if self.ucx is None else "ucx"


class Selection:
    """The choices of one node. Raises a `ConfigurationError` if what is required is not there."""

    def __init__(self, configuration: Configuration, machine: Machine, clock: Callable[[], float]) -> None:
        self._configuration = configuration
        self._machine = machine
        self._clock = clock
        self._devices = frozenset(name.partition(":")[0] for name in machine.active_ports)
        self._failures: dict[int, tuple[float, str]] = {}
        self._check_required()

    def choose(self, peer: int, address: str) -> Choice:
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
        if missing is not None:
            return Choice(None, f"{missing}; tcp instead" if kind is not Kind.AUTO else missing)
        settings = self._settings(kind, rule)
        if (failure := self._failed(peer)) is not None:
            return Choice(None, f"ucx failed on this link lately ({failure}); tcp for a while")
        found = "RDMA is here" if kind is Kind.AUTO else why
        return Choice(settings, found)

    def failed(self, peer: int, why: Exception) -> None:
        """A UCX link with this peer broke, or could not be made."""
        self._failures[peer] = self._clock() + self._configuration.cooldown, str(why)

    @property
    def has_ucx(self) -> bool:
        """Whether UCX can be used here at all, and may be."""
        return not self._machine.ucx.failure and self._configuration.require is not Kind.TCP

    def ucx_settings(self) -> list[UcxSettings]:
        """Every way of using UCX that a choice may come to, the default first: a peer may ask for any of them."""
        configuration = self._configuration
        found = [configuration.ucx, *(rule.ucx for rule in configuration.rules if rule.ucx is not None)]
        if self._machine.rdma:
            found.append(configuration.rdma_settings())
        return list(dict.fromkeys(found))

    def _failed(self, peer: int) -> str | None:
        until, why = self._failures.get(peer, (0.0, ""))
        if self._clock() < until:
            return why
        self._failures.pop(peer, None)
        return None

    def _missing(self, kind: Kind) -> str | None:
        """Why this kind cannot be had here; None if it can."""
        machine = self._machine
        if machine.ucx.failure:
            return f"no UCX here: {machine.ucx.failure}"
        if kind is Kind.UCX or machine.rdma:
            return None
        if not machine.active_ports:
            return "no RDMA device with an active port here"
        return f"UCX {machine.ucx.version} was built without RDMA"

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
        required = self._configuration.require
        if required is None or required is Kind.TCP or (missing := self._missing(required)) is None:
            return
        if not self._machine.ucx.failure:
            remedy = VERBS_REMEDY if self._machine.active_ports else "run `hoplite doctor`, or leave require out"
        else:
            remedy = "pip install 'hoplite-ucx[ucx]', or leave require out"
        raise ConfigurationError(
            self._configuration.place, "links.require", f"{required.value!r} cannot be had: {missing}", remedy
        )
