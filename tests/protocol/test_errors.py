import copy
import inspect
import pickle

import msgspec
import pytest

from hoplite_ucx.protocol import errors
from hoplite_ucx.protocol.errors import (
    ClosedError,
    Failure,
    FailureKind,
    GetTimeoutError,
    HopliteError,
    InternalError,
    InvalidRequestError,
    ObjectDeletedError,
    ObjectLostError,
    ObjectRef,
    PutAbortedError,
    StaleError,
    StoreFullError,
)
from tests.tools.machines import ref

EXCEPTIONS = [
    (FailureKind.LOST, ObjectLostError),
    (FailureKind.ABORTED, PutAbortedError),
    (FailureKind.DELETED, ObjectDeletedError),
    (FailureKind.TIMEOUT, GetTimeoutError),
    (FailureKind.STORE_FULL, StoreFullError),
    (FailureKind.INVALID, InvalidRequestError),
    (FailureKind.STALE, StaleError),
    (FailureKind.CLOSED, ClosedError),
    (FailureKind.INTERNAL, InternalError),
]


def test_every_kind_and_every_exception_stands_in_the_table() -> None:
    assert {kind for kind, _ in EXCEPTIONS} == set(FailureKind)
    defined = {value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, HopliteError)}
    assert {exception for _, exception in EXCEPTIONS} == defined - {HopliteError}


@pytest.mark.parametrize(("kind", "exception"), EXCEPTIONS)
def test_an_exception_names_ref_peer_and_remedy(kind: FailureKind, exception: type[HopliteError]) -> None:
    name = bytes.fromhex("c0ffee00" + "11" * 12)
    error = Failure(kind, "it broke", "fix it", name, "node-7").exception()
    assert type(error) is exception
    assert str(error) == "object c0ffee00: it broke (peer node-7); fix it"
    assert (error.ref, error.peer, error.remedy) == (ObjectRef(name), "node-7", "fix it")


@pytest.mark.parametrize(("kind", "exception"), EXCEPTIONS)
def test_an_exception_survives_pickling(kind: FailureKind, exception: type[HopliteError]) -> None:
    error = Failure(kind, "it broke", "fix it", ref(1), "node-7").exception()
    error.add_note("in the third step")
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is exception
        assert (str(again), again.ref, again.peer, again.remedy) == (str(error), error.ref, "node-7", "fix it")
        assert again.__notes__ == ["in the third step"]
    assert str(copy.copy(error)) == str(error)


def test_what_cannot_be_a_ref_is_none() -> None:
    assert Failure(FailureKind.INVALID, "a ref has 16 bytes", "correct it", b"short").exception().ref is None


def test_what_is_unknown_is_left_out() -> None:
    assert str(Failure(FailureKind.CLOSED, "closed", "open it").exception()) == "closed; open it"


@pytest.mark.parametrize(("kind", "exception"), EXCEPTIONS)
def test_a_failure_survives_the_wire(kind: FailureKind, exception: type[HopliteError]) -> None:
    failure = Failure(kind, "it broke", "fix it", ref(1), "node-7")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(failure), type=Failure) == failure


def test_callers_may_catch_what_python_calls_it() -> None:
    assert issubclass(GetTimeoutError, TimeoutError)
    assert issubclass(StoreFullError, MemoryError)
    assert issubclass(InvalidRequestError, ValueError)
    assert issubclass(PutAbortedError, ObjectLostError)
