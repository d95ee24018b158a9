"""Who observes a machine: counters for metrics, and recorders of traces. Each learns every event and its effects.

Without observers the driver drives the machine itself, so that nothing is paid for what nobody asked for. An observer
that raises is dropped, with a line in the log: it must not take the machine with it.
"""

import logging
import time
from typing import Generic, Protocol, TypeVar

from hoplite_ucx.protocol.driver import Driver, Effect, Event, Machine
from hoplite_ucx.runtime.shell.wakeups import now

_log = logging.getLogger("hoplite")

_Observed = TypeVar("_Observed", contravariant=True)
_Effect = TypeVar("_Effect")


class Observer(Protocol[_Observed, _Effect]):
    def handled(self, event: _Observed, effects: list[_Effect], now: float, took: float) -> None:
        """The machine has handled the event, in so many seconds; its effects are about to be performed."""

    def replaced(self, now: float) -> None:
        """The machine raised, and another one continues."""


class Observers(Generic[Event, Effect]):
    def __init__(self) -> None:
        self._observers: tuple[Observer[Event, Effect], ...] = ()
        self._driver: Driver[Event, Effect] | None = None
        self._machine: Machine[Event, Effect] | None = None

    def attach(self, driver: Driver[Event, Effect]) -> None:
        self._driver = driver
        self._machine = driver.machine
        self._look()

    def add(self, observer: Observer[Event, Effect]) -> None:
        self._observers = (*self._observers, observer)
        self._look()

    def remove(self, observer: Observer[Event, Effect]) -> None:
        self._observers = tuple(each for each in self._observers if each is not observer)
        self._look()

    def around(self, machine: Machine[Event, Effect]) -> Machine[Event, Effect]:
        """What to drive, instead of a machine that has taken the place of another."""
        self._machine = machine
        for observer in self._observers:
            observer.replaced(now())
        return self if self._observers else machine

    def _look(self) -> None:
        if self._driver is not None and self._machine is not None:
            self._driver.machine = self if self._observers else self._machine

    # --- in the machine's place ----------------------------------------------------------------------------------

    def handle(self, event: Event, moment: float) -> list[Effect]:
        assert self._machine is not None
        began = time.perf_counter()
        effects = self._machine.handle(event, moment)
        took = time.perf_counter() - began
        for observer in self._observers:
            try:
                observer.handled(event, effects, moment, took)
            except Exception:
                _log.exception("%s failed, and observes no more: a bug in this program", type(observer).__name__)
                self.remove(observer)
        return effects

    def wakeup(self) -> float | None:
        assert self._machine is not None
        return self._machine.wakeup()
