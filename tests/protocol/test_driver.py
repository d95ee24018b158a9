"""The driver of machines, with a machine and a shell that are made up: order, re-entrancy, and exceptions anywhere."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest

from hoplite_ucx.protocol.driver import Driver


@dataclass(frozen=True)
class Say:
    text: str


@dataclass(frozen=True)
class Shout:
    text: str


Effects: TypeAlias = Say | Shout


class Echo:
    """Says what it hears twice; `bad` things make it raise, and `sleepless` ones when it is asked for its wakeup."""

    def __init__(self, name: str = "first", bad: str = "bad") -> None:
        self.name = name
        self.bad = bad
        self.heard: list[str] = []

    def handle(self, event: str, now: float) -> list[Effects]:
        self.heard.append(event)
        if event.startswith(self.bad):
            raise ValueError(event)
        return [Say(f"{event} 1"), Shout(f"{event} 2")]

    def wakeup(self) -> float | None:
        if self.heard[-1:] == ["sleepless"]:
            raise ValueError("sleepless")
        return float(len(self.heard))


@dataclass
class Shell:
    machine: Echo = field(default_factory=Echo)
    done: list[str] = field(default_factory=list)
    woken: list[float | None] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    on_say: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self.driver: Driver[str, Effects] = Driver(
            self.machine,
            Effects,
            {Say: self._say, Shout: lambda effect: self.done.append(effect.text)},
            now=lambda: 0.0,
            wake=self.woken.append,
            succeed=self.succeed,
            unperformed=lambda effect, error: self.lost.append(f"{effect.text}: {error}"),
        )

    def _say(self, effect: Say) -> None:
        self.done.append(effect.text)
        self.on_say(effect.text)

    def succeed(self, event: str, error: Exception) -> None:
        self.raised.append(str(error))
        self.machine = Echo("next", self.machine.bad)
        self.driver.begin([Say("begins")], self.machine)


def test_what_is_fed_while_an_effect_is_performed_waits_until_all_are() -> None:
    shell = Shell()
    shell.on_say = lambda text: shell.driver.feed("b") if text == "a 1" else None
    shell.driver.feed("a")
    assert shell.done == ["a 1", "a 2", "b 1", "b 2"]
    assert shell.woken == [2.0], "once, when nothing is left to handle"


def test_an_effect_that_cannot_be_performed_takes_no_other_with_it() -> None:
    shell = Shell()

    def broken(_: str) -> None:
        raise OSError("no descriptor")

    shell.on_say = broken
    shell.driver.feed("a")
    assert shell.lost == ["a 1: no descriptor"]
    assert shell.done == ["a 1", "a 2"]


def test_a_machine_that_raises_is_succeeded_and_hears_nothing_more() -> None:
    shell = Shell()
    first = shell.machine
    shell.on_say = lambda text: [shell.driver.feed(e) for e in ("bad", "after")] and None if text == "a 1" else None
    shell.driver.feed("a")
    assert shell.raised == ["bad"]
    assert first.heard == ["a", "bad"], "what waited for it is dropped"
    assert shell.done == ["a 1", "a 2", "begins"]
    shell.driver.feed("b")
    assert shell.machine.heard == ["b"]
    assert shell.woken[-1] == 1.0, "the successor's"


def test_what_the_succession_feeds_is_handled_by_the_successor() -> None:
    shell = Shell()
    shell.on_say = lambda text: shell.driver.feed("closed") if text == "begins" else None
    shell.driver.feed("bad")
    assert shell.machine.heard == ["closed"]


def test_it_may_raise_again_and_again() -> None:
    shell = Shell()
    shell.on_say = lambda text: shell.driver.feed("bad again") if text == "begins" and len(shell.raised) < 3 else None
    shell.driver.feed("bad")
    assert shell.raised == ["bad", "bad again", "bad again"]
    shell.driver.feed("c")
    assert shell.done[-1] == "c 2"


def test_a_machine_that_does_not_know_when_to_be_woken_is_succeeded() -> None:
    """Else nobody would wake it any more, and whoever waits for one of its timers would wait for ever."""
    shell = Shell()
    shell.driver.feed("sleepless")
    assert shell.raised == ["sleepless"]
    assert shell.done == ["begins"], "the effects of the event are dropped"
    assert shell.woken == [0.0], "the successor's"


def test_if_there_is_no_successor_nothing_is_handled_any_more() -> None:
    shell = Shell()
    shell.driver._succeed = lambda _, error: (_ for _ in ()).throw(error)
    with pytest.raises(ValueError, match="bad"):
        shell.driver.feed("bad")
    shell.driver.feed("b")
    assert shell.machine.heard == ["bad"]


def test_while_it_is_paused_events_wait_in_order() -> None:
    shell = Shell()
    shell.driver.pause()
    shell.driver.feed("a")
    shell.driver.feed("b")
    assert not shell.machine.heard
    shell.driver.resume()
    assert shell.machine.heard == ["a", "b"]


def test_one_that_pauses_and_resumes_in_the_middle_of_an_event_ends_it_first() -> None:
    shell = Shell()

    def blink(text: str) -> None:
        if text == "a 1":
            shell.driver.feed("b")
            shell.driver.pause()
            shell.driver.resume()

    shell.on_say = blink
    shell.driver.feed("a")
    assert shell.done == ["a 1", "a 2", "b 1", "b 2"]


def test_one_that_stops_in_the_middle_drops_what_waits() -> None:
    shell = Shell()

    def stop(_: str) -> None:
        shell.driver.feed("b")
        shell.driver.stop()

    shell.on_say = stop
    shell.driver.feed("a")
    assert shell.machine.heard == ["a"]
    assert not shell.woken


@pytest.mark.parametrize("performs", [{Say: print}, {Say: print, Shout: print, int: print}])
def test_a_shell_performs_every_effect_and_no_other(performs: dict[type, Callable[[object], None]]) -> None:
    with pytest.raises(TypeError, match=r"look at (Shout|int)"):
        Driver(Echo(), Effects, performs, now=lambda: 0.0, wake=print, succeed=print)
