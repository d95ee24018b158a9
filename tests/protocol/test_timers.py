from hypothesis import given
from hypothesis import strategies as st

from hoplite_ucx.protocol.timers import Timers


def test_timers_fire_in_order_and_once() -> None:
    timers = Timers()
    timers.set("late", 3.0)
    timers.set("early", 1.0)
    timers.set("middle", 2.0)
    assert timers.next() == 1.0
    assert list(timers.pop_due(2.0)) == ["early", "middle"]
    assert list(timers.pop_due(2.0)) == []
    assert timers.next() == 3.0
    assert list(timers) == ["late"]


def test_ties_fire_in_the_order_they_were_set_whatever_their_keys() -> None:
    timers = Timers()
    keys: list[object] = ["b", ("a", 1), 3, "a"]  # of types that cannot be compared
    for key in keys:
        timers.set(key, 1.0)
    assert list(timers.pop_due(1.0)) == keys


def test_setting_again_moves() -> None:
    timers = Timers()
    timers.set("x", 1.0)
    timers.set("x", 5.0)
    assert len(timers) == 1
    assert list(timers.pop_due(2.0)) == []
    assert timers.next() == 5.0
    timers.set("x", 3.0)
    assert list(timers.pop_due(3.0)) == ["x"]
    assert timers.next() is None


def test_set_if_absent_leaves_an_earlier_time() -> None:
    timers = Timers()
    timers.set_if_absent("x", 1.0)
    timers.set_if_absent("x", 0.5)
    assert timers.next() == 1.0


def test_cancelled_timers_never_fire() -> None:
    timers = Timers()
    timers.set("x", 1.0)
    timers.cancel("x")
    timers.cancel("x")
    assert "x" not in timers
    assert timers.next() is None
    assert list(timers.pop_due(9.0)) == []


def test_a_timer_set_while_others_fire_waits_for_the_next_look() -> None:
    timers = Timers()
    timers.set("beat", 1.0)
    fired = 0
    for key in timers.pop_due(1.0):
        fired += 1
        timers.set(key, 1.0)
    assert fired == 1
    assert timers.next() == 1.0


@given(
    st.lists(
        st.tuples(st.sampled_from(["set", "absent", "cancel", "pop"]), st.integers(0, 4), st.integers(0, 20)),
        max_size=40,
    )
)
def test_behaves_like_a_dictionary_of_times(steps: list[tuple[str, int, int]]) -> None:
    timers, model = Timers(), dict[object, float]()
    for what, key, at in steps:
        match what:
            case "set":
                timers.set(key, at)
                model[key] = at
            case "absent":
                timers.set_if_absent(key, at)
                model.setdefault(key, at)
            case "cancel":
                timers.cancel(key)
                model.pop(key, None)
            case "pop":
                due = list(timers.pop_due(at))
                assert sorted(map(str, due)) == sorted(str(k) for k, time in model.items() if time <= at)
                assert [model[k] for k in due] == sorted(model[k] for k in due)
                model = {k: time for k, time in model.items() if time > at}
        assert timers.next() == min(model.values(), default=None)
        assert set(timers) == set(model)
        assert len(timers) == len(model)
