"""Many objects in one call: put_many, as_completed, and copies that may be written to."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx import aio
from hoplite_ucx.errors import GetTimeoutError, InvalidRequestError, ObjectDeletedError, StoreFullError
from hoplite_ucx.runtime.worker import calls, client, default_cluster, loop_calls

pytestmark = pytest.mark.usefixtures("embedded")

LARGE = 1 << 18


async def _all(refs: AsyncIterator[hoplite.ObjectRef]) -> list[hoplite.ObjectRef]:
    return [ref async for ref in refs]


def aio_put_many(*args: Any, **kwargs: Any) -> Any:
    return asyncio.run(aio.put_many(*args, **kwargs))


def aio_get(*args: Any, **kwargs: Any) -> Any:
    return asyncio.run(aio.get(*args, **kwargs))


def aio_as_completed(*args: Any, **kwargs: Any) -> Iterator[hoplite.ObjectRef]:
    async def main() -> list[hoplite.ObjectRef]:
        return await _all(aio.as_completed(*args, **kwargs))

    return iter(asyncio.run(main()))


both_puts = pytest.mark.parametrize("put_many", [hoplite.put_many, aio_put_many], ids=["blocking", "aio"])
both_gets = pytest.mark.parametrize("get", [hoplite.get, aio_get], ids=["blocking", "aio"])
both_completed = pytest.mark.parametrize(
    "as_completed", [hoplite.as_completed, aio_as_completed], ids=["blocking", "aio"]
)


# --- put_many ---------------------------------------------------------------------------------------------------


@both_puts
def test_many_values_of_all_sizes(put_many: Callable[..., list[hoplite.ObjectRef]]) -> None:
    values = [np.full(LARGE if index % 700 == 5 else 3, index) for index in range(1500)]
    refs = put_many(iter(values))
    assert len(set(refs)) == 1500
    assert [int(value[-1]) for value in hoplite.get(refs, timeout=60)] == list(range(1500))
    hoplite.delete(refs)
    assert put_many([]) == []


@both_puts
def test_names_made_before(put_many: Callable[..., list[hoplite.ObjectRef]]) -> None:
    refs = [hoplite.new_ref() for _ in range(3)]
    hoplite.put("first", ref=refs[1])
    assert put_many(["a", "b", "c"], refs=refs) == refs
    assert hoplite.get(refs) == ["a", "first", "c"]


def test_small_objects_are_put_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are sent before any answer is read."""
    ours = default_cluster.client()
    sent: list[bytes] = []
    sent_before_reply: list[int] = []
    small_put, reply = client._small_put, ours._reply

    def noted_put(ref: bytes, *args: Any) -> Any:
        sent.append(ref)
        return small_put(ref, *args)

    def noted_reply(*args: Any, **options: Any) -> Any:
        sent_before_reply.append(len(sent))
        return reply(*args, **options)

    monkeypatch.setattr(client, "_small_put", noted_put)
    monkeypatch.setattr(ours, "_reply", noted_reply)
    hoplite.put_many(range(100))
    assert sent_before_reply == [100] * 100


def test_tasks_put_small_objects_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    send = loop_calls._Session._send

    def noted_send(session: Any, request: Any) -> None:
        nonlocal most
        most = max(most, len(session._calls))
        send(session, request)

    monkeypatch.setattr(loop_calls._Session, "_send", noted_send)
    aio_put_many(range(100))
    assert most == 100


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("never")


@both_puts
def test_a_failure_says_which_and_leaves_nothing(
    put_many: Callable[..., list[hoplite.ObjectRef]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[hoplite.ObjectRef] = []
    runs = calls.runs

    def noted(refs: Any, *args: Any) -> Any:
        made.extend(refs)
        return runs(refs, *args)

    monkeypatch.setattr(calls, "runs", noted)
    with pytest.raises(InvalidRequestError, match=r"values\[1400\]") as caught:
        put_many([*range(1400), Unpicklable(), 5])
    assert caught.value.ref == made[1400]
    with pytest.raises(ObjectDeletedError):
        hoplite.get(made[0])
    with pytest.raises(StoreFullError, match=r"values\[1\]"):
        put_many([1, np.empty(1 << 32, np.uint8)], timeout=0.1)


@both_puts
def test_what_cannot_be_put_together_is_refused(put_many: Callable[..., list[hoplite.ObjectRef]]) -> None:
    for values in ("text", b"bytes", {"a": 1}, np.zeros(3), 7, None):
        with pytest.raises(InvalidRequestError, match="a list of values"):
            put_many(values)
    for refs in ([], [hoplite.new_ref()] * 3):
        with pytest.raises(InvalidRequestError, match="for 2 values"):
            put_many([1, 2], refs=refs)
    with pytest.raises(InvalidRequestError, match="timeout"):
        put_many([1], timeout=-1)


def test_a_scope_deletes_what_was_put_together() -> None:
    with hoplite.scope():
        refs = hoplite.put_many(range(3))
        assert hoplite.get(refs) == [0, 1, 2]
    with pytest.raises(ObjectDeletedError):
        hoplite.get(refs[2])


# --- as_completed -----------------------------------------------------------------------------------------------


def test_refs_come_as_they_complete() -> None:
    refs = [hoplite.new_ref() for _ in range(5)]
    order = [3, 0, 4, 1, 2]
    completed = hoplite.as_completed(refs, timeout=60)
    for index in order:
        hoplite.put(index, ref=refs[index])
        assert next(completed) == refs[index]
    assert next(completed, None) is None


def test_refs_come_as_they_complete_to_tasks() -> None:
    async def main() -> None:
        refs = [hoplite.new_ref() for _ in range(5)]
        order = iter([3, 0, 4, 1, 2])
        seen = []
        await aio.put(3, ref=refs[next(order)])
        async for ref in aio.as_completed(refs, timeout=60):
            seen.append(refs.index(ref))
            if (index := next(order, None)) is not None:
                await aio.put(index, ref=refs[index])
        assert seen == [3, 0, 4, 1, 2]

    asyncio.run(main())


@both_completed
def test_refs_that_are_ready_come_at_once(as_completed: Callable[..., Iterator[hoplite.ObjectRef]]) -> None:
    refs = hoplite.put_many(range(10))
    assert sorted(as_completed([*refs, refs[0]], timeout=60)) == sorted(refs)
    assert list(as_completed([])) == []


@both_completed
def test_a_failed_object_is_completed(as_completed: Callable[..., Iterator[hoplite.ObjectRef]]) -> None:
    ref = hoplite.put(1)
    hoplite.delete(ref)
    assert list(as_completed([ref], timeout=60)) == [ref]


def test_the_time_is_over() -> None:
    refs = [hoplite.put(1), hoplite.new_ref(), hoplite.new_ref()]
    completed = hoplite.as_completed(refs, timeout=0.2)
    assert next(completed) == refs[0]
    with pytest.raises(GetTimeoutError, match="2 of 3 refs"):
        next(completed)


@both_completed
def test_bad_input_is_refused_before_the_first(as_completed: Callable[..., Iterator[hoplite.ObjectRef]]) -> None:
    for refs, timeout in ((hoplite.new_ref(), 1), ([1], 1), (None, 1), ([], -1)):
        with pytest.raises(InvalidRequestError):
            as_completed(refs, timeout=timeout)


# --- get(copy=True) ---------------------------------------------------------------------------------------------


@both_gets
@pytest.mark.parametrize("size", [3, LARGE])
def test_a_copy_can_be_written_to(get: Callable[..., Any], size: int) -> None:
    value = {"b": np.zeros(size), "a": [np.ones((2, size), order="F"), (np.array(5),)]}
    ref = hoplite.put(value)
    own = get(ref, copy=True)
    own["b"][:] = 7
    own["a"][0][1] = 8
    own["a"][1][0][...] = 9
    again = hoplite.get(ref)
    assert not again["b"].any()
    assert again["a"][0].all()
    assert again["a"][1][0] == 5
    array = hoplite.put(np.arange(size))
    first, second = get([array, array], copy=True)
    first[0] = 100
    assert (second[0], hoplite.get(array)[0]) == (0, 0)


@both_gets
def test_a_copy_of_a_pickle_can_be_written_to(get: Callable[..., Any]) -> None:
    ref = hoplite.put(("text", np.zeros(LARGE), {3}))
    own = get(ref, copy=True)
    own[1][:] = 1
    own[2].add(4)
    assert not hoplite.get(ref)[1].any()


@both_gets
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (4, 0)])
def test_a_copy_of_little(get: Callable[..., Any], shape: tuple[int, ...]) -> None:
    own = get(hoplite.put(np.ones(shape)), copy=True)
    assert own.shape == shape
    assert own.flags.writeable
    own[...] = 2


@both_gets
def test_a_copy_and_out_are_refused_together(get: Callable[..., Any]) -> None:
    ref = hoplite.put(np.ones(3))
    with pytest.raises(InvalidRequestError, match="out="):
        get(ref, copy=True, out=np.empty(3))


def test_the_names_are_in_both_modules() -> None:
    for module, name in itertools.product((hoplite, aio), ("put_many", "as_completed", "create", "seal")):
        assert callable(getattr(module, name))
