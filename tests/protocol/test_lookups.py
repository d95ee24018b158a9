"""What a reader is told: the bytes exactly when a want would be answered with them, and nothing changes by it."""

import pytest

from hoplite_ucx.errors import HopliteError
from hoplite_ucx.protocol.events import CombineBytes, CombinedBytes
from hoplite_ucx.protocol.invariants import check
from hoplite_ucx.protocol.lookups import (
    QUESTION,
    Absent,
    Answer,
    Found,
    decode_answer,
    decode_incarnation,
    encode,
    encode_incarnation,
)
from hoplite_ucx.protocol.messages import Delete, Operation, Put, Reduce
from tests.tools.machines import LARGE, DirectoryDriver, ref, version

R, S, TARGET = ref(1), ref(2), ref(3)


def look(driver: DirectoryDriver, name: bytes) -> Answer:
    """The answer; what the directory knows of anything is as before, and it has nothing to do."""
    before = repr(driver.directory.records), driver.directory.wakeup()
    answer = driver.directory.look(name)
    assert (repr(driver.directory.records), driver.directory.wakeup()) == before
    assert driver.directory.world.take_effects() == []
    check(driver.directory)
    return answer


def test_a_small_object_is_given() -> None:
    d = DirectoryDriver("A")
    assert look(d, R) == Absent(R)
    d.tell("A", Put(1, R, 3, b"layout", b"abc"))
    assert look(d, R) == Found(version(1), b"layout", b"abc")


def test_a_large_object_is_not() -> None:
    d = DirectoryDriver("A")
    d.tell("A", Put(1, R, LARGE, b""))
    assert look(d, R) == Absent(R)


def test_a_deleted_object_is_not_even_while_a_reduction_needs_it() -> None:
    d = DirectoryDriver("A", "B")
    d.tell("A", Put(1, R, 3, b"", b"abc"), Put(2, S, 3, b"", b"abc"))
    d.tell("A", Delete(3, (S,)))
    assert look(d, S) == Absent(S)
    d.tell("B", Reduce(1, TARGET, (R,), Operation.SUM, 1))
    d.tell("A", Delete(4, (R,)))
    assert d.directory.records[R].broadcast is not None, "it is hidden, and its bytes are still there"
    assert look(d, R) == Absent(R)


def test_the_target_of_a_reduction_is_given_when_it_is_decided() -> None:
    d = DirectoryDriver("A", "B")
    d.tell("A", Put(1, R, 3, b"", b"abc"), Put(2, S, 3, b"", b"abc"))
    d.tell("B", Reduce(1, TARGET, (R, S), Operation.SUM, 2))
    (combine,) = [effect for effect in d.effects if isinstance(effect, CombineBytes)]
    assert look(d, TARGET) == Absent(TARGET)
    d.handle(CombinedBytes(combine.version, b"sum"))
    assert look(d, TARGET) == Found(combine.version, b"", b"sum")


def test_nothing_is_given_while_the_nodes_of_an_earlier_directory_are_heard() -> None:
    d = DirectoryDriver("A")
    d.tell("A", Put(1, R, 3, b"", b"abc"))
    d.directory.recover(d.now)
    assert look(d, R) == Absent(R)


@pytest.mark.parametrize("answer", [Absent(R), Found(version(1), b"layout", bytes(100))])
def test_messages_travel(answer: Answer) -> None:
    assert decode_answer(encode(answer)) == answer


def test_a_question_is_a_frame_of_a_ref() -> None:
    assert int.from_bytes(QUESTION, "little") == len(R)


@pytest.mark.parametrize("frame", [b"", b"\xc1status", R, encode(Absent(R)) + b"x", b"\x92" * 60])
def test_what_is_no_answer_is_refused(frame: bytes) -> None:
    with pytest.raises(HopliteError, match="malformed"):
        decode_answer(frame)


def test_incarnations() -> None:
    assert decode_incarnation(encode_incarnation(1 << 60)) == 1 << 60
    assert decode_incarnation(b"") == 0
