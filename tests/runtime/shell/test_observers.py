"""Who observes a machine: nobody costs nothing, and an observer that fails is dropped, not the machine."""

import logging

import pytest

from hoplite_ucx.protocol.driver import Driver
from hoplite_ucx.runtime.shell.observers import Observers


class Machine:
    def handle(self, event: str, now: float) -> list[int]:
        return [len(event)]

    def wakeup(self) -> float | None:
        return None


class Seen:
    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []
        self.replacements = 0
        self.fails = False

    def handled(self, event: str, effects: list[int], now: float, took: float) -> None:
        if self.fails:
            raise RuntimeError("an observer's bug")
        assert took >= 0
        self.events.append((event, effects))

    def replaced(self, now: float) -> None:
        self.replacements += 1


def driven(machine: Machine) -> tuple[Driver[str, int], Observers[str, int], list[int]]:
    performed: list[int] = []

    def raised(event: str, error: Exception) -> None:
        raise error

    driver: Driver[str, int] = Driver(
        machine, int | str, {int: performed.append, str: print}, now=lambda: 1.0, wake=lambda _: None, succeed=raised
    )
    observers: Observers[str, int] = Observers()
    observers.attach(driver)
    return driver, observers, performed


def test_without_observers_the_machine_itself_is_driven() -> None:
    machine, seen = Machine(), Seen()
    driver, observers, performed = driven(machine)
    assert driver.machine is machine
    observers.add(seen)
    driver.feed("event")
    assert seen.events == [("event", [5])]
    assert performed == [5]
    observers.remove(seen)
    assert driver.machine is machine
    assert observers.around(machine) is machine


def test_an_observer_that_raises_is_dropped_and_the_machine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    machine, broken, seen = Machine(), Seen(), Seen()
    driver, observers, performed = driven(machine)
    broken.fails = True
    observers.add(broken)
    observers.add(seen)
    with caplog.at_level(logging.ERROR, "hoplite"):
        driver.feed("one")
        driver.feed("more")
    assert performed == [3, 4]
    assert [event for event, _ in seen.events] == ["one", "more"]
    assert len(caplog.records) == 1


def test_a_machine_in_anothers_place_is_observed_too() -> None:
    seen = Seen()
    driver, observers, _ = driven(Machine())
    observers.add(seen)
    driver.begin([], observers.around(Machine()))
    driver.feed("event")
    assert seen.replacements == 1
    assert len(seen.events) == 1
