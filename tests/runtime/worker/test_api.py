"""The public API on an embedded cluster: what every function does, and what it refuses."""

import asyncio
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx import aio, errors
from hoplite_ucx.errors import (
    ClosedError,
    GetTimeoutError,
    InvalidRequestError,
    ObjectDeletedError,
    PutAbortedError,
)
from hoplite_ucx.runtime.worker import default_cluster
from hoplite_ucx.runtime.worker.refs import is_large
from tests.tools.waiting import HANG, eventually

pytestmark = pytest.mark.usefixtures("embedded")

BIG = 1 << 20


def test_put_and_get() -> None:
    array = np.arange(BIG, dtype=np.float32)
    ref = hoplite.put(array)
    result = hoplite.get(ref, timeout=HANG)
    assert np.array_equal(result, array)
    assert not result.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        result.flags.writeable = True  # else a write would be a segmentation fault


def test_a_ref_that_put_made_says_whether_the_object_is_large() -> None:
    """Who gets it then asks only once: the directory for a small one, the agent for a large one."""
    large = np.zeros(100_000)

    async def put_async() -> hoplite.ObjectRef:
        return await aio.put(large)

    named = hoplite.new_ref()
    for ref in (hoplite.put(large), asyncio.run(put_async()), hoplite.create(large.size, large.dtype).seal()):
        assert is_large(ref.binary)
        assert hoplite.get(ref, timeout=HANG).nbytes == large.nbytes
    assert hoplite.put(large, ref=named) == named
    assert not all(is_large(hoplite.put(b"small").binary) for _ in range(8))  # one may be, by chance


def test_the_value_may_change_after_put() -> None:
    array = np.zeros(BIG)
    ref = hoplite.put(array)
    array += 1
    assert not hoplite.get(ref).any()


def test_several_at_once_and_in_order() -> None:
    refs = [hoplite.put(np.full(1000, index)) for index in range(5)]
    assert [value[0] for value in hoplite.get(refs)] == [0, 1, 2, 3, 4]
    assert [value[0] for value in hoplite.gather(refs[::-1])] == [4, 3, 2, 1, 0]
    assert hoplite.get([]) == []


def test_a_long_list() -> None:
    refs = [hoplite.put(index) for index in range(500)]
    assert hoplite.get(refs, timeout=HANG) == list(range(500))
    ready, rest = hoplite.wait(refs, count=500, timeout=HANG)
    assert ready == refs
    assert not rest
    hoplite.delete(refs)


def test_one_that_is_missing_fails_the_list() -> None:
    refs = [hoplite.put(np.zeros(BIG)), hoplite.new_ref()]
    with pytest.raises(GetTimeoutError, match=refs[1].hex()[:8]):
        hoplite.get(refs, timeout=0.1)
    assert hoplite.get(refs[0]).shape == (BIG,)


def test_get_into_an_array() -> None:
    array = np.random.default_rng(0).random((100, 50))
    ref = hoplite.put(array)
    out = np.empty((100, 50))
    assert hoplite.get(ref, out=out) is out
    assert np.array_equal(out, array)
    outs = [np.empty((100, 50)), np.empty((100, 50), order="F")]
    hoplite.get([ref, ref], out=outs)
    assert all(np.array_equal(each, array) for each in outs)


def a_call_is_open() -> bool:
    return bool(default_cluster.client().status()["calls"])


def signal_when_called() -> None:
    eventually(a_call_is_open)
    os.kill(os.getpid(), signal.SIGUSR1)


def test_a_name_before_the_object() -> None:
    later = hoplite.new_ref()

    def put_when_called() -> None:
        eventually(a_call_is_open)
        hoplite.put("now", ref=later)

    thread = threading.Thread(target=put_when_called)
    thread.start()
    assert hoplite.get(later, timeout=HANG) == "now"
    thread.join()


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "mean"])
@pytest.mark.parametrize("size", [10, BIG])
def test_reduce(op: str, size: int) -> None:
    arrays = [np.random.default_rng(seed).random(size) for seed in range(4)]
    refs = [hoplite.put(array) for array in arrays]
    expected = getattr(np, op)(arrays, axis=0)
    np.testing.assert_allclose(hoplite.get(hoplite.reduce(refs, op=op)), expected)
    out = np.empty(size)
    np.testing.assert_allclose(hoplite.get(hoplite.allreduce(refs, op=op), out=out), expected)


def test_a_mean_of_trees() -> None:
    refs = [hoplite.put({"a": np.full(3, float(index)), "b": (np.array(index * 2.0),)}) for index in range(3)]
    result = hoplite.get(hoplite.reduce(refs, "mean"))
    assert np.array_equal(result["a"], np.ones(3))
    assert result["b"] == (2.0,)


@pytest.mark.parametrize("op", ["and", "or", "xor"])
def test_reduce_bits(op: str) -> None:
    arrays = [np.random.default_rng(seed).integers(0, 1 << 30, BIG) for seed in range(3)]
    ufunc = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op]
    refs = [hoplite.put(array) for array in arrays]
    assert np.array_equal(hoplite.get(hoplite.reduce(refs, op=op)), ufunc.reduce(arrays))


@pytest.mark.parametrize("size", [10, BIG])
def test_an_operation_without_a_meaning_gives_nobody_bytes(size: int) -> None:
    refs = [hoplite.put(np.ones(size)) for _ in range(2)]
    target = hoplite.reduce(refs, op="xor")
    with pytest.raises(InvalidRequestError, match="xor is not defined for float64") as caught:
        hoplite.get(target, timeout=HANG)
    assert caught.value.ref == target
    with pytest.raises(InvalidRequestError, match="xor is not defined for float64"):
        hoplite.get(hoplite.ObjectRef(target.binary), timeout=HANG)
    with pytest.raises(InvalidRequestError, match="xor is not defined"):
        hoplite.contributors(target, timeout=HANG)
    texts = [hoplite.put(f"text {index}") for index in range(2)]
    with pytest.raises(InvalidRequestError, match="a str cannot be reduced"):
        hoplite.get(hoplite.reduce(texts), timeout=HANG)


def test_contributors() -> None:
    refs = [hoplite.new_ref() for _ in range(3)]
    target = hoplite.reduce(refs, count=2)
    hoplite.put(np.ones(10), ref=refs[2])
    hoplite.put(np.ones(10), ref=refs[0])
    assert hoplite.contributors(target, timeout=HANG) == [refs[2], refs[0]]
    assert hoplite.get(target)[0] == 2


def test_wait() -> None:
    refs = [hoplite.put(1), hoplite.new_ref(), hoplite.put(2)]
    ready, rest = hoplite.wait(refs, count=2, timeout=HANG)
    assert ready == [refs[0], refs[2]]
    assert rest == [refs[1]]
    ready, rest = hoplite.wait([refs[1]], timeout=0)
    assert (ready, rest) == ([], [refs[1]])


def test_delete() -> None:
    ref = hoplite.put(np.zeros(BIG))
    hoplite.delete(ref)
    with pytest.raises(ObjectDeletedError):
        hoplite.get(ref)
    hoplite.delete([])


def test_more_deletions_than_fit_into_one_request() -> None:
    put = [hoplite.put(1), hoplite.put(2)]
    unknown = [hoplite.new_ref() for _ in range(100_001)]
    hoplite.delete([*unknown[:-2000], put[0], *unknown[-2000:], put[1]], timeout=60)
    for ref in put:
        with pytest.raises(ObjectDeletedError):
            hoplite.get(ref, timeout=HANG)


def test_numbers_of_numpy_are_numbers() -> None:
    ref = hoplite.put(np.arange(3))
    for timeout in (np.float32(5), np.int64(5)):
        assert len(hoplite.get(ref, timeout=timeout)) == 3
        assert hoplite.wait([ref], np.int64(1), timeout=timeout)[0] == [ref]
    assert len(hoplite.get(hoplite.reduce([ref], count=np.int32(1)), timeout=HANG)) == 3
    assert hoplite.create(np.int64(5)).array.shape == (5,)
    assert hoplite.create((np.int32(2), 3)).array.shape == (2, 3)


def test_scope() -> None:
    with hoplite.scope():
        ref = hoplite.put(np.zeros(10))
        with hoplite.scope():
            inner = hoplite.put(1)
        with pytest.raises(ObjectDeletedError):
            hoplite.get(inner)
        total = hoplite.reduce([ref])
        assert hoplite.get(total).shape == (10,)
    for gone in (ref, total):
        with pytest.raises(ObjectDeletedError):
            hoplite.get(gone)


def test_a_scope_may_end_in_another_context_than_it_began_in() -> None:
    """As those of generators do that a framework runs: fixtures of tests, what a request depends on."""

    def resource() -> Iterator[hoplite.ObjectRef]:
        with hoplite.scope():
            yield hoplite.put(1)

    made, began = resource(), copy_context()
    ref = began.run(next, made)
    with hoplite.scope():
        assert copy_context().run(next, made, None) is None
        with pytest.raises(ObjectDeletedError):
            hoplite.get(ref, timeout=HANG)
    later = began.run(hoplite.put, 2)
    assert hoplite.get(later) == 2
    with hoplite.scope():
        task = copy_context()
        with hoplite.scope():
            inner = copy_context()
        outlived = [context.run(hoplite.put, 3) for context in (task, inner)]
    for ref in outlived:
        with pytest.raises(ObjectDeletedError):
            hoplite.get(ref, timeout=HANG)


@pytest.mark.parametrize("size", [10, BIG])
def test_create_and_seal(size: int) -> None:
    draft = hoplite.create(size, "f4")
    draft.array[:] = 7
    draft.advance(4)
    ref = hoplite.seal(draft)
    assert ref == draft.ref
    assert np.array_equal(hoplite.get(ref), np.full(size, 7, "f4"))
    assert not draft.array.flags.writeable
    with pytest.raises(InvalidRequestError, match="sealed or abandoned"):
        draft.seal()


def test_a_drafts_array_stays_what_it_was() -> None:
    draft = hoplite.create(BIG)
    draft.array[:] = 1
    hoplite.delete(draft.seal())
    for value in range(4):
        hoplite.delete(hoplite.put(np.full(BIG, value + 5.0)))
    assert (draft.array == 1).all()


@pytest.mark.parametrize("size", [10, BIG])
def test_a_draft_that_fails_is_given_up(size: int) -> None:
    ref = hoplite.new_ref()
    with pytest.raises(ZeroDivisionError), hoplite.create((size, 2), ref=ref):
        raise ZeroDivisionError
    with pytest.raises((GetTimeoutError, PutAbortedError)):  # as the agent hears of it after or before the get
        hoplite.get(ref, timeout=0.1)
    with hoplite.create((size, 2), ref=ref) as draft:
        draft.array[...] = 1
    assert hoplite.get(ref).sum() == size * 2


def test_refs_are_values() -> None:
    ref = hoplite.reduce([hoplite.put(np.ones(3))], op="mean")
    copy = pickle.loads(pickle.dumps(ref))
    assert copy == ref
    assert hash(copy) == hash(ref)
    assert {ref: 1}[copy] == 1
    assert ref != ref.binary
    assert ref.hex() in repr(ref)
    assert hoplite.get(copy)[0] == 1
    assert hoplite.ObjectRef(ref.binary) == hoplite.ObjectRef.fromhex(ref.hex()) == ref


def test_refs_have_an_order() -> None:
    refs = [hoplite.ObjectRef(bytes([number]) * 16) for number in range(4)]
    assert sorted([refs[2], refs[0], refs[3], refs[1]]) == refs
    assert refs[0] < refs[1] <= refs[1] < refs[2]
    assert refs[2] >= refs[1] > refs[0]
    with pytest.raises(TypeError):
        refs[0] < refs[1].binary  # type: ignore[operator]  # noqa: B015


@pytest.mark.parametrize("text", ["", "ab", "zz" * 16, "00" * 17, " 0" * 16, b"00" * 16, None, "\u00b2" * 32])
def test_a_text_that_is_not_a_ref_is_refused(text: Any) -> None:
    with pytest.raises(InvalidRequestError, match="32 hexadecimal digits"):
        hoplite.ObjectRef.fromhex(text)


def test_named_objects() -> None:
    assert hoplite.ref_for("weights").hex() == "679f5eed4eb47dd3a7c989771b909b97"  # in every process
    assert hoplite.ref_for("weights") != hoplite.ref_for("Weights")
    assert len({hoplite.ref_for(name) for name in ("", " ", "x" * 1_000_000, "\ud800", "\U0001f40e")}) == 5
    hoplite.put("first", ref=hoplite.ref_for("step 1"))
    assert hoplite.get(hoplite.ref_for("step 1")) == "first"
    with pytest.raises(InvalidRequestError, match="a name must be a string"):
        hoplite.ref_for(7)  # type: ignore[arg-type]


def test_a_second_put_of_a_ref_is_ignored_and_the_docs_say_so() -> None:
    ref = hoplite.put("first")
    assert hoplite.put("second", ref=ref) == ref
    assert hoplite.get(ref) == "first"
    assert "second put of a ref is ignored" in (hoplite.put.__doc__ or "")


def test_errors_are_at_hand_and_name_their_ref() -> None:
    ref = hoplite.new_ref()
    with pytest.raises(hoplite.GetTimeoutError) as caught:
        hoplite.get(ref, timeout=0)
    assert caught.value.ref == pickle.loads(pickle.dumps(caught.value)).ref == ref
    for name in errors.__all__:
        if name.endswith("Error"):
            assert getattr(hoplite, name) is getattr(errors, name)


def test_threads_have_their_own_calls() -> None:
    def work(index: int) -> None:
        for step in range(20):
            ref = hoplite.put(np.full(1000, index * 100 + step))
            assert hoplite.get(ref, timeout=HANG)[0] == index * 100 + step

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)


@pytest.mark.parametrize("size", [10, BIG])
def test_a_signal_handler_may_call_in_the_middle_of_a_call(size: int) -> None:
    later = hoplite.new_ref()
    inside: list[float] = []

    def handle(*_: object) -> None:
        fulfil = threading.Thread(target=lambda: hoplite.put(np.full(size, 7.0), ref=later))
        fulfil.start()
        fulfil.join()
        # The reply to the call that is open has come.
        assert select.select([default_cluster.client()._local.connection], [], [], HANG)[0]
        inside.append(hoplite.get(hoplite.put(np.full(size, 5.0)), timeout=HANG)[0])

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        threading.Thread(target=signal_when_called).start()
        assert hoplite.get(later, timeout=HANG)[0] == 7
        assert inside == [5]
        assert hoplite.get(later, timeout=HANG)[0] == 7
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_child_process_finds_the_cluster() -> None:
    ref = hoplite.put(np.arange(BIG))
    code = (
        "import sys, pickle, hoplite_ucx as h; h.init(); "
        "r = pickle.loads(bytes.fromhex(sys.argv[1])); print(int(h.get(r).sum())); h.shutdown()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, pickle.dumps(ref).hex()], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) == np.arange(BIG).sum()


def test_a_forked_child_is_told() -> None:
    array = hoplite.get(hoplite.put(np.arange(BIG)))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            hoplite.put(1)
        except ClosedError as error:
            code = 0 if "forked" in str(error) and array[5] == 5 else 2
        finally:
            os._exit(code)
    os.close(writer)
    os.close(reader)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert hoplite.get(hoplite.put(2)) == 2


def test_what_a_forked_child_maps_is_not_written_to() -> None:
    """The parent lets go of an array that its child still has: the memory must not be used again."""
    array = hoplite.get(hoplite.put(np.full(BIG, 1.0)))
    go, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell)
        os.read(go, 1)
        os._exit(0 if (array == 1.0).all() else 1)
    os.close(go)
    with hoplite.scope():
        hoplite.delete(hoplite.put(0))
        del array
        for value in range(4):
            hoplite.put(np.full(BIG, 5.0 + value))
    os.close(tell)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_interrupted_call_leaves_nothing_behind() -> None:
    """A signal in the middle of a get: the next calls of this thread work, and do not see its answer."""
    ref = hoplite.new_ref()
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        threading.Thread(target=signal_when_called).start()
        with pytest.raises(KeyboardInterrupt):
            hoplite.get(ref, timeout=HANG)
    finally:
        signal.signal(signal.SIGUSR1, before)
    hoplite.put("late", ref=ref)
    assert hoplite.get(hoplite.put("next"), timeout=HANG) == "next"
    assert hoplite.get(ref, timeout=HANG) == "late"


# --- bad input --------------------------------------------------------------------------------------------------


def bad_calls() -> list[tuple[str, Callable[[], Any]]]:
    ref = hoplite.ObjectRef(bytes(16))
    refs = [ref]
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("put ref", lambda: hoplite.put(1, ref="x")),  # type: ignore[arg-type]
        ("get none", lambda: hoplite.get(None)),  # type: ignore[call-overload]
        ("get bytes", lambda: hoplite.get(b"0" * 16)),  # type: ignore[call-overload]
        ("get text list", lambda: hoplite.get(["x"])),  # type: ignore[list-item]
        ("get set", lambda: hoplite.get({ref})),  # type: ignore[call-overload]
        ("get out list", lambda: hoplite.get(ref, out=[1])),
        ("get out text", lambda: hoplite.get(ref, out="x")),
        ("get outs", lambda: hoplite.get(refs, out=[])),
        ("get out read-only", lambda: hoplite.get(ref, out=np.broadcast_to(np.zeros(1), (3,)))),
        ("gather one", lambda: hoplite.gather(ref)),  # type: ignore[arg-type]
        ("wait one", lambda: hoplite.wait(ref)),  # type: ignore[arg-type]
        ("wait none", lambda: hoplite.wait([])),
        ("wait twice", lambda: hoplite.wait([ref, ref])),
        ("wait 0", lambda: hoplite.wait(refs, count=0)),
        ("wait many", lambda: hoplite.wait(refs, count=2)),
        ("wait bool", lambda: hoplite.wait(refs, count=True)),
        ("wait float", lambda: hoplite.wait(refs, count=1.0)),  # type: ignore[arg-type]
        ("delete text", lambda: hoplite.delete("x")),  # type: ignore[arg-type]
        ("delete numbers", lambda: hoplite.delete([1])),  # type: ignore[list-item]
        ("reduce none", lambda: hoplite.reduce([])),
        ("reduce one", lambda: hoplite.reduce(ref)),  # type: ignore[arg-type]
        ("reduce twice", lambda: hoplite.reduce([ref, ref])),
        ("reduce op", lambda: hoplite.reduce(refs, op="median")),
        ("reduce op type", lambda: hoplite.reduce(refs, op=np.add)),  # type: ignore[arg-type]
        ("reduce count", lambda: hoplite.reduce(refs, count=2)),
        ("reduce count 0", lambda: hoplite.reduce(refs, count=0)),
        ("reduce itself", lambda: hoplite.reduce(refs, ref=ref)),
        ("allreduce none", lambda: hoplite.allreduce([])),
        ("contributors", lambda: hoplite.contributors("x")),  # type: ignore[arg-type]
        ("contributors of a put", lambda: hoplite.contributors(hoplite.put(1), timeout=HANG)),
        ("create shape", lambda: hoplite.create(-1)),
        ("create text", lambda: hoplite.create("x")),  # type: ignore[arg-type]
        ("create dtype", lambda: hoplite.create(3, "nonsense")),
        ("create objects", lambda: hoplite.create(3, object)),
        ("create bool", lambda: hoplite.create(True)),
        ("create huge", lambda: hoplite.create(1 << 62)),
        ("create huger", lambda: hoplite.create((1 << 40, 1 << 40))),
        ("create float", lambda: hoplite.create(2.5)),  # type: ignore[arg-type]
        ("get outs number", lambda: hoplite.get([ref], out=5)),  # type: ignore[call-overload]
        ("wait too many", lambda: hoplite.wait([hoplite.new_ref() for _ in range(100_001)])),
        ("reduce too many", lambda: hoplite.reduce([hoplite.new_ref() for _ in range(100_001)])),
        ("advance", lambda: hoplite.create(3).advance(100)),
        ("seal", lambda: hoplite.seal(ref)),  # type: ignore[arg-type]
        ("ref short", lambda: hoplite.ObjectRef(b"x")),
        ("ref text", lambda: hoplite.ObjectRef("0" * 16)),  # type: ignore[arg-type]
        ("init twice", hoplite.init),
        ("init number", lambda: hoplite.init(7777)),  # type: ignore[arg-type]
        ("init memory", lambda: hoplite.init(memory=-1)),
        ("put generator", lambda: hoplite.put(x for x in ())),
    ]
    for timeout in (-1, float("nan"), "5", True, 10**400):
        calls += [
            (f"put timeout {str(timeout)[:5]}", lambda timeout=timeout: hoplite.put(1, timeout=timeout)),
            (f"get timeout {str(timeout)[:5]}", lambda timeout=timeout: hoplite.get(ref, timeout=timeout)),
            (f"wait timeout {str(timeout)[:5]}", lambda timeout=timeout: hoplite.wait(refs, timeout=timeout)),
            (f"delete timeout {str(timeout)[:5]}", lambda timeout=timeout: hoplite.delete(ref, timeout=timeout)),
            (f"reduce timeout {str(timeout)[:5]}", lambda timeout=timeout: hoplite.reduce(refs, timeout=timeout)),
            (f"create timeout {str(timeout)[:5]}", lambda timeout=timeout: hoplite.create(3, timeout=timeout)),
        ]
    return calls


@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in bad_calls()])
def test_bad_input_is_refused_at_once(call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        call()
    assert caught.value.remedy
    assert hoplite.get(hoplite.put("still fine"), timeout=HANG) == "still fine"
