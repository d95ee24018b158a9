"""The public interface: names, errors and clients."""

import asyncio
import os
import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx import aio
from tests.first_hour.findings import finding
from tests.tools.waiting import HANG


@contextmanager
def private() -> Iterator[hoplite.Cluster]:
    with hoplite.connect(memory="64MiB") as cluster:
        yield cluster


@finding("14", "a second put of a ref")
def second_put() -> str:
    with private() as cluster:
        ref = cluster.put("first")
        cluster.put("second", ref=ref)
        assert cluster.get(ref) == "first"
    assert "second put of a ref is ignored" in (hoplite.put.__doc__ or "")
    return "it is ignored, as the docstring of put and the README say"


@finding("15a", "refs as texts, sorted, and of names")
def refs() -> str:
    ref = hoplite.new_ref()
    assert hoplite.ObjectRef.fromhex(ref.hex()) == ref
    assert sorted([hoplite.ObjectRef(b"b" * 16), hoplite.ObjectRef(b"a" * 16)])[0].binary == b"a" * 16
    assert hoplite.ref_for("weights") == hoplite.ref_for("weights") != hoplite.ref_for("bias")
    return "fromhex, an order, and ref_for"


@finding("15b", "errors that are caught, kept and sent")
def errors() -> str:
    ref = hoplite.new_ref()
    with private() as cluster, pytest.raises(hoplite.GetTimeoutError) as caught:
        cluster.get(ref, timeout=0)
    error = caught.value
    again = pickle.loads(pickle.dumps(error))
    assert (error.ref, again.ref, again.remedy) == (ref, ref, error.remedy)
    return "importable from hoplite_ucx, error.ref is an ObjectRef, and they pickle"


@finding("15c", "many objects at once")
def many() -> str:
    with private() as cluster:
        refs = cluster.put_many(range(300))
        assert sorted(cluster.as_completed(refs, timeout=HANG)) == sorted(refs)
        assert cluster.get(refs) == list(range(300))
    return "put_many and as_completed"


@finding("15d", "writing into what get returned")
def copies() -> str:
    with private() as cluster:
        ref = cluster.put({"a": np.zeros(3)})
        own = cluster.get(ref, copy=True)
        own["a"] += 1
        assert not cluster.get(ref)["a"].any()
    return "get(copy=True) gives a copy that may be written to"


@finding("15e", "asking what an object is")
def info() -> str:
    with private() as cluster:
        known = cluster.info(cluster.put(np.zeros(3, np.float32)))
        unknown = cluster.info(hoplite.new_ref())
    assert (known.state, known.size, known.copies, unknown.state) == ("ready", 12, 1, "unknown")
    assert "float32[3]" in (known.layout or "")
    assert known.creator in known.where
    assert known.age is not None
    return "info: state, size, layout, where, creator, age"


@finding("15f", "a token, a configuration and memory given to init")
def arguments() -> str:
    with tempfile.TemporaryDirectory() as folder:
        config, secret = Path(folder) / "links.toml", Path(folder) / "token"
        config.write_text('[links]\ntransport = "tcp"\n')
        os.close(os.open(secret, os.O_CREAT, 0o600))
        secret.write_text("a secret")
        with (
            hoplite.connect(memory="64MiB", token="a secret", config=config) as cluster,
            hoplite.connect(cluster.address, token_file=secret) as joined,
        ):
            assert joined.cluster_id == cluster.cluster_id
        with pytest.raises(hoplite.InvalidRequestError, match="MiB"):
            hoplite.connect(memory="64 pigeons")
    return 'token=, token_file=, config= and memory="64MiB"; what cannot be meant starts nothing'


@finding("15g", "all of it in async code")
def in_async_code() -> str:
    public = {name for name in vars(hoplite.Cluster) if not name.startswith("_")}
    assert public - set(vars(aio.AsyncCluster)) == {"aio"}
    assert not aio.is_initialized()

    async def main() -> None:
        async with await aio.connect(memory="64MiB") as cluster:
            draft = await cluster.create(1 << 18)
            draft.array[:] = 1
            assert (await cluster.get(await cluster.seal(draft)))[0] == 1

    asyncio.run(main())
    return "aio has every call, create and seal too"


@finding("15h", "two clusters in one process")
def two_clusters() -> str:
    with private() as one, private() as other:
        ref = one.put(1)
        other.put(2, ref=ref)
        assert (one.get(ref), other.get(ref)) == (1, 2)
    return "connect() returns each with the same methods"
