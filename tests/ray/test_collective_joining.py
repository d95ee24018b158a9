"""How the members of a collective group agree on its nonce, over a made-up key-value store."""

import importlib
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tools.waiting import HANG, eventually

pytest.importorskip("ray")

from hoplite_ucx.errors import GetTimeoutError


class Store:
    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.module: Any = None
        """Which uses it."""

    def agree(self, size: int, rank: int) -> str:
        nonce: str = self.module._agree(size, rank, "group")
        return nonce

    def put(self, key: str, value: str) -> None:
        with self.lock:
            self.held[key] = value.encode()

    def get(self, key: str) -> bytes | None:
        with self.lock:
            return self.held.get(key)

    def delete(self, key: str) -> None:
        with self.lock:
            self.held.pop(key, None)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    made.module = collective = importlib.import_module("hoplite_ucx.ray.collective")  # warnings of cupy's are Ray's
    kv: Any = SimpleNamespace(_internal_kv_put=made.put, _internal_kv_get=made.get, _internal_kv_del=made.delete)
    context = SimpleNamespace(get_job_id=lambda: "01")
    monkeypatch.setattr(collective, "internal_kv", kv)
    monkeypatch.setattr(collective, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    monkeypatch.setattr(collective, "_JOIN_SECONDS", float(HANG))
    return made


def test_all_agree_and_leave_nothing(store: Store) -> None:
    with ThreadPoolExecutor(4) as pool:
        joining = [pool.submit(store.agree, 4, rank) for rank in range(4)]
        assert len({each.result() for each in joining}) == 1
    assert not store.held


def test_a_member_that_was_killed_while_it_joined(store: Store) -> None:
    """Rank 0 comes first, and finds the question of one that has gone."""
    store.put("hoplite/01/collective/group/1", "of the dead")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(store.agree, 2, 0)
        eventually(lambda: "hoplite/01/collective/group/answer/of the dead" in store.held)
        second = pool.submit(store.agree, 2, 1)
        assert first.result() == second.result()
    assert not store.held


def test_a_member_that_never_comes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.module, "_JOIN_SECONDS", 0.0)
    with pytest.raises(GetTimeoutError, match="rank 1 did not join the collective group 'group'"):
        store.agree(2, 0)
    with pytest.raises(GetTimeoutError, match="rank 0 did not join"):
        store.agree(2, 1)
