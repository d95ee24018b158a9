"""Virtual time: order, ties, cancelling, and where a run stops."""

from __future__ import annotations

from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ucx.simulate.clock import Clock, Handle


def test_runs_in_order_of_time_and_ties_first_come_first_served() -> None:
    clock, seen = Clock(), list[tuple[float, str]]()
    for when, name in [(2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b")]:
        clock.at(when, lambda name: seen.append((clock.now, name)), name)
    assert clock.run() == 4
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c"), (2.0, "d")]


def test_the_past_is_now_and_comes_after_what_is_due_now() -> None:
    clock, seen = Clock(), list[tuple[float, str]]()

    def note(name: str) -> None:
        seen.append((clock.now, name))

    def late() -> None:
        clock.at(0.5, note, "for the past")
        clock.after(-1, note, "for before now")

    clock.at(1.0, late)
    clock.at(1.0, note, "due")
    clock.run()
    assert seen == [(1.0, "due"), (1.0, "for the past"), (1.0, "for before now")]


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        Clock().at(nan, print)


def test_cancelled_callbacks_neither_run_nor_count_nor_move_time() -> None:
    clock, seen = Clock(), list[str]()
    clock.at(1.0, seen.append, "kept")
    handle = clock.at(5.0, seen.append, "cancelled")
    assert clock.pending == 2
    handle.cancel()
    handle.cancel()
    assert not handle.pending
    assert clock.pending == 1
    assert clock.run() == 1
    assert (seen, clock.now, clock.pending) == (["kept"], 1.0, 0)


def test_cancelling_what_has_run_is_harmless_also_from_within() -> None:
    clock, handles = Clock(), list[Handle]()

    def cancel() -> None:
        for handle in handles:
            handle.cancel()

    handles.append(clock.at(1.0, cancel))
    clock.run()
    cancel()
    assert clock.pending == 0


def test_run_until_includes_its_instant_and_ends_there() -> None:
    clock, seen = Clock(), list[float]()
    for when in (1.0, 2.0, 3.0):
        clock.at(when, seen.append, when)
    assert clock.run(until=2.0) == 2
    assert (seen, clock.now) == ([1.0, 2.0], 2.0)
    assert clock.run(until=2.5) == 0
    assert clock.now == 2.5
    assert clock.run(until=1.0) == 0
    assert clock.now == 2.5
    assert clock.run() == 1


def test_max_events_stops_at_the_last_one() -> None:
    clock, seen = Clock(), list[float]()
    for when in (1.0, 2.0, 3.0):
        clock.at(when, seen.append, when)
    assert clock.run(until=10.0, max_events=2) == 2
    assert (seen, clock.now) == ([1.0, 2.0], 2.0)
    assert clock.step()
    assert not clock.step()
    assert seen == [1.0, 2.0, 3.0]


def test_an_error_leaves_the_clock_usable() -> None:
    clock, seen = Clock(), list[str]()
    clock.at(1.0, lambda: 1 / 0)
    clock.at(2.0, seen.append, "next")
    with pytest.raises(ZeroDivisionError):
        clock.run()
    assert clock.pending == 1
    clock.run()
    assert seen == ["next"]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans())))
def test_any_schedule_runs_as_a_stable_sort_of_what_was_kept(entries: list[tuple[int, bool]]) -> None:
    clock, seen = Clock(), list[tuple[int, int]]()
    handles = [clock.at(when, seen.append, (when, i)) for i, (when, _) in enumerate(entries)]
    for handle, (_, keep) in zip(handles, entries, strict=True):
        if not keep:
            handle.cancel()
    kept = sorted((when, i) for i, (when, keep) in enumerate(entries) if keep)
    assert clock.pending == len(kept)
    clock.run()
    assert seen == kept


def test_what_cannot_be_cancelled_keeps_its_place_among_the_rest() -> None:
    clock, seen = Clock(), list[tuple[float, str]]()

    def note(name: str) -> None:
        seen.append((clock.now, name))

    clock.after(1.0, note, "a")
    clock.post(1.0, note, "b")
    clock.after(1.0, note, "c")
    clock.post(0.5, note, "first")
    assert clock.pending == 4
    assert clock.run() == 4
    assert seen == [(0.5, "first"), (1.0, "a"), (1.0, "b"), (1.0, "c")]


def test_a_run_ends_before_the_callback_that_is_not_wanted_any_more() -> None:
    clock, seen = Clock(), list[int]()
    for number in range(5):
        clock.at(number, seen.append, number)
    assert clock.run(unless=lambda: len(seen) == 3) == 3
    assert (seen, clock.now, clock.pending) == ([0, 1, 2], 2.0, 2)
