"""What `info` tells of objects."""

import asyncio
import os
import signal
from typing import Any

import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx import aio
from hoplite_ucx.errors import GetTimeoutError, InvalidRequestError
from hoplite_ucx.runtime.worker import calls
from tests.tools.live import Live

pytestmark = pytest.mark.usefixtures("embedded")

LARGE = 1 << 18


def test_objects_of_every_kind() -> None:
    small, large = hoplite.put(np.ones(3)), hoplite.put({"a": np.ones(LARGE, np.float32)})
    pickled, missing, gone = hoplite.put({1, 2}), hoplite.new_ref(), hoplite.put(1)
    hoplite.delete(gone)
    target = hoplite.reduce([missing])
    known = hoplite.info([small, large, pickled, missing, gone, target])
    assert [each.ref for each in known] == [small, large, pickled, missing, gone, target]
    assert [each.state for each in known] == ["ready", "ready", "ready", "unknown", "deleted", "coming"]
    assert [each.exists for each in known] == [True, True, True, False, False, True]
    assert [each.size for each in known[:2]] == [24, 4 * LARGE]
    assert "float64[3]" in (known[0].layout or "")
    assert f"float32[{LARGE}]" in (known[1].layout or "")
    assert "pickle" in (known[2].layout or "")
    assert known[0].where == (known[0].creator, "directory")
    assert known[1].where == (known[1].creator,)
    assert all(each.copies == 1 and each.age is not None and each.age < 600 for each in known[:3])
    assert known[3] == hoplite.ObjectInfo(missing, hoplite.ObjectState.UNKNOWN)


def test_one_ref_gives_one_info() -> None:
    ref = hoplite.put("text")
    assert hoplite.info(ref).ref == ref
    assert hoplite.info([ref])[0].ref == ref
    assert hoplite.info([]) == []
    assert asyncio.run(aio.info(ref)).exists
    assert [each.state for each in asyncio.run(aio.info([ref, hoplite.new_ref()]))] == ["ready", "unknown"]


def test_a_draft_is_coming() -> None:
    with hoplite.create(LARGE) as draft:
        assert hoplite.info(draft.ref).state == "coming"
    assert hoplite.info(draft.ref).state == "ready"


def test_more_refs_than_one_question_takes() -> None:
    refs = hoplite.put_many(range(10))
    many = [*refs, *(hoplite.new_ref() for _ in range(2500)), *refs]
    known = hoplite.info(many)
    assert [each.ref for each in known] == many
    assert sum(each.exists for each in known) == 20


@pytest.mark.parametrize("refs", [None, 7, "text", [1], b"0" * 16])
def test_bad_input_is_refused(refs: Any) -> None:
    with pytest.raises(InvalidRequestError):
        hoplite.info(refs)


def test_where_copies_are(live: Live) -> None:
    ref = live.hosts[0].put(np.ones(LARGE))
    live.hosts[2].get(ref)

    def known() -> hoplite.ObjectInfo:
        [found] = live.hosts[1].client.carry_out(calls.info([ref], 60))
        return found

    while (found := known()).copies < 2:  # its holder says so a moment after its own user has it
        pass
    addresses = [host.agent.report["address"] for host in live.hosts]
    assert set(found.where) == {addresses[0], addresses[2]}
    assert found.creator == addresses[0]


def test_a_directory_that_does_not_answer(live: Live) -> None:
    directory = live.directory.process.pid
    os.kill(directory, signal.SIGSTOP)
    try:
        with pytest.raises(GetTimeoutError, match="directory"):
            live.hosts[0].client.carry_out(calls.info([hoplite.new_ref()], 0.2))
    finally:
        os.kill(directory, signal.SIGCONT)
