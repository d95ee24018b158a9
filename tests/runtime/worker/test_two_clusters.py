"""Several clusters in one process: each call goes to its own, and each ends by itself."""

import asyncio
import contextlib
import inspect
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx import aio
from hoplite_ucx.errors import ClosedError, GetTimeoutError, InvalidRequestError, ObjectDeletedError

MEMORY = 64 << 20
LARGE = 1 << 18
VARIABLES = ("HOPLITE_ADDRESS", "HOPLITE_AGENT", "HOPLITE_TOKEN", "HOPLITE_TOKEN_FILE", "HOPLITE_CONFIG")


@pytest.fixture(scope="module", autouse=True)
def no_cluster_from_outside() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[hoplite.Cluster, hoplite.Cluster]]:
    with hoplite.connect(memory=MEMORY) as one, hoplite.connect(memory=MEMORY) as other:
        yield one, other


@pytest.mark.parametrize("size", [10, LARGE])
def test_each_cluster_has_its_own_objects(two: tuple[hoplite.Cluster, hoplite.Cluster], size: int) -> None:
    one, other = two
    assert one.cluster_id != other.cluster_id
    assert one.address != other.address
    ref = one.put(np.full(size, 1.0))
    with pytest.raises(GetTimeoutError):
        other.get(ref, timeout=0.2)
    other.put(np.full(size, 2.0), ref=ref)
    assert (one.get(ref)[0], other.get(ref)[0]) == (1, 2)
    assert other.get(other.reduce([ref, other.put(np.ones(size))]))[0] == 3
    one.delete(ref)
    assert other.get(ref)[0] == 2


def test_a_draft_is_sealed_where_it_was_created(two: tuple[hoplite.Cluster, hoplite.Cluster]) -> None:
    for size in (10, LARGE):
        draft = two[0].create(size)
        draft.array[:] = 7
        two[1].seal(draft)  # whoever is asked
        assert two[0].get(draft.ref)[0] == 7
        assert two[1].wait([draft.ref], timeout=0) == ([], [draft.ref])


def test_a_scope_deletes_what_was_made_in_its_own_cluster(two: tuple[hoplite.Cluster, hoplite.Cluster]) -> None:
    one, other = two
    with one.scope():
        with other.scope():
            refs = {one: one.put(1), other: other.put(2)}
        assert one.get(refs[one]) == 1
        with pytest.raises(ObjectDeletedError):
            other.get(refs[other])
    with pytest.raises(ObjectDeletedError):
        one.get(refs[one])


def test_tasks_may_use_both(two: tuple[hoplite.Cluster, hoplite.Cluster]) -> None:
    async def main() -> None:
        refs = [hoplite.new_ref() for _ in range(20)]
        gets = [asyncio.create_task(cluster.aio.get(refs[0], timeout=60)) for cluster in two]
        for number, cluster in enumerate(two):
            for ref in refs:
                await cluster.aio.put(number, ref=ref)
        assert await asyncio.gather(*gets) == [0, 1]
        assert [await cluster.aio.get(refs) for cluster in two] == [[0] * 20, [1] * 20]
        async with await aio.connect(two[0].address) as third:
            assert await third.get(refs[1]) == 0
        assert await two[0].aio.get(refs[2]) == 0  # not closed with the other connection

    asyncio.run(main())


def test_a_cluster_can_be_joined_by_its_address(two: tuple[hoplite.Cluster, hoplite.Cluster]) -> None:
    ref = two[1].put("here")
    code = (
        "import sys, hoplite_ucx as hoplite\n"
        "with hoplite.connect(sys.argv[1], agent=sys.argv[2]) as cluster:\n"
        "    print(cluster.get(hoplite.ObjectRef(bytes.fromhex(sys.argv[3]))), cluster.cluster_id)"
    )
    command = [sys.executable, "-c", code, two[1].address, two[1].agent, ref.hex()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["here", two[1].cluster_id]


def test_the_functions_use_the_cluster_of_init(two: tuple[hoplite.Cluster, hoplite.Cluster]) -> None:
    assert not hoplite.is_initialized()
    with pytest.raises(ClosedError, match="not initialised"):
        hoplite.put(1)
    with pytest.raises(ClosedError, match="not initialised"):
        hoplite.cluster()
    default = hoplite.init(memory=MEMORY)
    try:
        assert hoplite.cluster() is default
        assert os.environ["HOPLITE_ADDRESS"] == default.address
        assert default.agent in repr(default)
        ref = hoplite.put("default")
        assert default.get(ref) == "default"
        assert two[0].wait([ref], timeout=0) == ([], [ref])
        with hoplite.connect(memory=MEMORY) as private:  # not the one that our own init has exported
            assert private.cluster_id != default.cluster_id
    finally:
        hoplite.shutdown()
    assert not default.is_open
    assert "HOPLITE_ADDRESS" not in os.environ
    assert two[0].is_open


def test_a_cluster_that_was_closed_says_so() -> None:
    with hoplite.connect(memory=MEMORY) as cluster:
        array = cluster.get(cluster.put(np.ones(LARGE)))
    cluster.close()  # again
    assert array[0] == 1
    for call in (lambda: cluster.put(1), lambda: cluster.address, lambda: asyncio.run(cluster.aio.put(1))):
        with pytest.raises(ClosedError, match="closed"):
            call()
    assert "closed" in repr(cluster)


def test_a_forked_child_is_told(two: tuple[hoplite.Cluster, hoplite.Cluster]) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            two[0].put(1)
        except ClosedError as error:
            os.write(writing, error.remedy.encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    assert b"connect()" in os.read(reading, 1000)
    os.close(reading)
    assert two[0].get(two[0].put(1)) == 1


def test_the_functions_can_be_pickled_and_clusters_cannot(two: tuple[hoplite.Cluster, hoplite.Cluster]) -> None:
    for function in (hoplite.put, hoplite.get, aio.put):
        assert pickle.loads(pickle.dumps(function)).__name__ == function.__name__
    for cluster in (two[0], two[0].aio, two[0].put):
        with pytest.raises(InvalidRequestError, match="cannot be pickled"):
            pickle.dumps(cluster)


def test_functions_and_methods_are_documented_alike() -> None:
    """Every call is a function, a method, and both of the async twin."""
    own = {"aio", "close", "is_open", "address", "agent", "cluster_id"}
    methods = {name for name in vars(hoplite.Cluster) if not name.startswith("_")} - own
    for name in methods:
        function, twin = getattr(hoplite, name), getattr(aio, name)
        assert function.__doc__
        assert name in hoplite.__all__
        assert name in aio.__all__
        assert list(inspect.signature(function).parameters) == list(inspect.signature(twin).parameters), name


def test_the_end_of_a_process_ends_its_clusters() -> None:
    code = (
        "import hoplite_ucx as hoplite\n"
        f"clusters = [hoplite.connect(memory={MEMORY}) for _ in range(2)]\n"
        "hoplite.init(clusters[0].address)\n"
        "print(*(child.process.pid for c in clusters for child in c._of.attachment.children))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not done.stderr
    for process in map(int, done.stdout.split()):
        with contextlib.suppress(ProcessLookupError):  # else it is another process by now
            assert "hoplite" not in _command(process)


def _command(process: int) -> str:
    try:
        with open(f"/proc/{process}/cmdline") as file:
            return file.read()
    except FileNotFoundError:
        raise ProcessLookupError from None


def test_threads_may_use_both(two: tuple[hoplite.Cluster, hoplite.Cluster]) -> None:
    ref, got = hoplite.new_ref(), {}

    def get(cluster: hoplite.Cluster) -> None:
        got[cluster] = cluster.get(ref, timeout=60)

    threads = [threading.Thread(target=get, args=(cluster,)) for cluster in two]
    for thread in threads:
        thread.start()
    for number, cluster in enumerate(two):
        cluster.put(number, ref=ref)
    for thread in threads:
        thread.join()
    assert got == {two[0]: 0, two[1]: 1}
