"""The driver: what every shell does around its machine. It has no IO of its own.

Events are fed in and handled one after the other; the effects of each are performed, in order, before the next one is
handled. Performing an effect may feed further events: they wait their turn. When nothing is left to handle, the shell
learns when the machine must be woken.

A machine that raises is over: in the middle of an event its state is neither that before it nor that after it. The
event's effects are dropped, and so are the events that still waited for that machine. The shell then provides its
successor (see `Directory.successor` and `NodeState.successor`), and the driver continues with that machine.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar, get_args

Event = TypeVar("Event")
Effect = TypeVar("Effect")
Handled = TypeVar("Handled", contravariant=True)


class Machine(Protocol[Handled, Effect]):
    def handle(self, event: Handled, now: float) -> list[Effect]: ...
    def wakeup(self) -> float | None: ...


Table = Mapping[type, Callable[[Any], None]]
"""How a shell performs each kind of effect."""


class Driver(Generic[Event, Effect]):
    def __init__(
        self,
        machine: Machine[Event, Effect],
        effects: Any,
        perform: Table,
        *,
        now: Callable[[], float],
        wake: Callable[[float | None], None],
        succeed: Callable[[Event, Exception], None],
        unperformed: Callable[[Effect, Exception], None] | None = None,
        handled: Callable[[Event, list[Effect]], None] | None = None,
    ) -> None:
        """`effects` is the union of what the machine may ask for: a shell that cannot perform one of them is refused
        here, not when it comes. `wake` is told when the next `Tick` is due. `succeed` gives the driver another machine
        with `begin`; if it raises, nothing is handled any more. `unperformed` hears of effects that could not be
        performed; without it they are the caller's. `handled` is told of every event that was."""
        kinds = set(get_args(effects))
        if kinds != set(perform):
            names = ", ".join(sorted(kind.__name__ for kind in kinds ^ set(perform)))
            raise TypeError(f"a shell performs every effect of its machine, and no other: look at {names}")
        self.machine = machine
        self._perform = perform
        self._now = now
        self._wake = wake
        self._succeed = succeed
        self._unperformed = unperformed
        self._handled = handled
        self._events: deque[Event] = deque()
        self._due: float | None = None
        """When the machine must be woken, as it said last."""
        self._busy = False
        self._paused = False
        self._stopped = False

    def feed(self, event: Event) -> None:
        """Handle an event and perform what follows, unless that is going on: then it waits its turn."""
        if self._stopped:
            return
        self._events.append(event)
        if not (self._busy or self._paused):
            self._run()

    def begin(self, effects: list[Effect], machine: Machine[Event, Effect] | None = None) -> None:
        """Perform what a machine asks for at its start: the first one, or another that takes its place."""
        if machine is not None:
            self.machine = machine
        if machine is not None or not self._busy:  # else the machine has raised, and this is its farewell
            self._due = self.machine.wakeup()
        if self._busy:  # in the middle of an event, after which the driver goes on
            self._apply(effects)
            return
        self._busy = True
        try:
            self._apply(effects)
        finally:
            self._busy = False
        self._run()

    def pause(self) -> None:
        """Events wait until `resume`."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if not self._busy:
            self._run()

    def stop(self) -> None:
        """Nothing is handled any more."""
        self._stopped = True
        self._events.clear()

    def _run(self) -> None:
        events = self._events
        self._busy = True
        try:
            while events and not self._paused:
                event = events.popleft()
                try:
                    effects = self.machine.handle(event, self._now())
                    self._due = self.machine.wakeup()
                except Exception as error:
                    self._raised(event, error)
                    continue
                self._apply(effects)
                if self._handled is not None:
                    self._handled(event, effects)
        finally:
            self._busy = False
        if not self._stopped:
            self._wake(self._due)

    def _raised(self, event: Event, error: Exception) -> None:
        self._events.clear()
        try:
            self._succeed(event, error)
        except BaseException:
            self.stop()
            raise

    def _apply(self, effects: list[Effect]) -> None:
        perform = self._perform
        for effect in effects:
            try:
                perform[type(effect)](effect)
            except Exception as error:  # one that cannot be performed must not take the others with it
                if self._unperformed is None:
                    raise
                self._unperformed(effect, error)
