"""The owner: the process that started hoplite in a Ray job, as a rule the driver. Everything ends with it.

It runs the directory as a child. In Ray's sense it owns the head actor and the agent actors, so that Ray ends them when
the owner ends, and it owns the release tokens. A token is a small Ray object whose ref travels with an array wherever
Ray sends it. When the last ref is gone everywhere, Ray tells the token's owner, and the array is deleted.

The driver is the right owner. A worker may die while others use what it made. The head may die: what it knows, it
learns from the owner again, and the tokens in its stock are dropped. But when the driver dies, the job is over.

Threads: one asks the head for wishes and fulfils them, one deletes what nobody refers to any more, and agents are
started on threads of their own, because a node that does not answer must not hold up the others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Collection
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import hoplite_ucx as hoplite
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.ray import ray_calls
from hoplite_ucx.ray.errors import closed
from hoplite_ucx.ray.head import LOOK_SECONDS, TOKENS, Head, Published, Supply, Wishes
from hoplite_ucx.ray.node_agent import REDUCE, START_SECONDS, NodeAgent
from hoplite_ucx.ray.orphans import LOOK_SECONDS as ORPHANS_SECONDS
from hoplite_ucx.ray.orphans import Orphans
from hoplite_ucx.ray.terms import NAMESPACE, Terms, agent_name, head_name

_log = logging.getLogger("hoplite.ray")

_HEAD_SECONDS = 60.0
"""For Ray to start a worker process for the head, on a busy machine too."""
_PAUSE = 0.2
_GATHER = 0.05
"""What is dropped within this time is deleted together."""
_MOST_AT_ONCE = 1000
_DELETE_SECONDS = 30.0
_STATUS_SECONDS = 10.0
_END_SECONDS = 5.0
_REDUCTIONS = 128
"""So many may wait for their sources on one node at the same time."""


class Owner:
    def __init__(self, *, memory: int | None, rate: float | None, threshold: int, arrays: bool) -> None:
        _, self.job = ray_calls.whereabouts()
        self._connection = ray_calls.connection()
        self.counts: Counter[str] = Counter()
        self.freed = 0
        self._node = ray_calls.node_id()
        self._memory = memory
        self._rate = rate
        self._lock = threading.Lock()
        self._agents: dict[str, Any] = {}
        self._starting: set[str] = set()
        self._published: dict[str, Published] = {}
        self._dropped: queue.SimpleQueue[tuple[bytes, bytes] | None] = queue.SimpleQueue()
        """Names of objects, and the ids of their tokens, which have ended for Ray."""
        self.orphans = Orphans(ray_calls.referred)
        self._closing = threading.Event()
        self._directory = hoplite.start_directory(ray.util.get_node_ip_address())
        try:
            self.terms = Terms(self._directory.address, threshold, arrays)
            self.head = self._start_head()
            ray_calls.answer(self.head.supply.remote(self._supply(tokens=TOKENS)), _HEAD_SECONDS)
        except BaseException as error:
            self._directory.close()
            if isinstance(error, ray.exceptions.RayError):
                detail = f"hoplite's head, an actor on this node, did not start: {error}"
                remedy = "see Ray's messages; install hoplite-ucx in the environment of Ray's workers if it is missing"
                raise closed(detail, remedy) from error
            raise
        self._threads = [
            threading.Thread(target=target, name=f"hoplite-{name}", daemon=True)
            for name, target in (("owner", self._serve), ("delete", self._delete))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_over(self) -> bool:
        """Whether it was closed, or this process is not in its job any more."""
        if not self._closing.is_set():
            if ray_calls.connection() is self._connection:
                return False
            self._closing.set()
            self._dropped.put(None)
        return True

    def close(self) -> None:
        """End hoplite in this job, and return when no thread of ours calls Ray any more. Arrays that tasks have got
        stay valid."""
        self._closing.set()
        self._dropped.put(None)
        with contextlib.suppress(Exception):  # Ray itself may be over
            ray_calls.answer(self.head.end.remote(), _END_SECONDS)
        for thread in self._threads:
            thread.join(_END_SECONDS)
        with self._lock:
            actors = [self.head, *self._agents.values()]
        for actor in actors:
            with contextlib.suppress(Exception):
                ray_calls.kill(actor, no_restart=True)
        self._directory.close()

    def pids(self) -> dict[str, Any]:
        """Of the directory, and of every node's agent actor and agent."""
        return {"directory": self._directory.pid, "nodes": self._of_agents("pids")}

    def status(self) -> dict[str, Any]:
        """What `hoplite_ucx.ray.status` returns."""
        return {
            "address": self.terms.address,
            "job": self.job,
            "nodes": self._of_agents("status"),
            "released": self.freed,
            "plain": dict(self.counts),
        }

    def _of_agents(self, method: str) -> dict[str, Any]:
        with self._lock:
            asked = {node: getattr(actor, method).remote() for node, actor in self._agents.items()}
        found = {}
        for node, ref in asked.items():
            try:
                found[node] = ray_calls.answer(ref, _STATUS_SECONDS)
            except (HopliteError, ray.exceptions.RayError) as error:
                found[node] = {"error": str(error)}
        return found

    # --- on the owner's thread ---------------------------------------------------------------------------------

    def _start_head(self) -> Any:
        options = {
            "name": head_name(self.job),
            "namespace": NAMESPACE,
            "num_cpus": 0,
            "max_restarts": -1,
            "max_task_retries": -1,
            "max_concurrency": 10_000,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(self._node, soft=False),
        }
        return ray.remote(Head).options(**options).remote()

    def _serve(self) -> None:
        while not self.is_over:
            try:
                # Not retried by Ray: a restarted head says that it knows nothing.
                wishes: Wishes = ray_calls.answer(
                    self.head.wishes.options(max_task_retries=0).remote(), LOOK_SECONDS + _HEAD_SECONDS
                )
                self._fulfil(wishes)
            except (Exception, SystemExit) as error:  # Ray raises the latter when it is shut down
                if not self._closing.wait(_PAUSE) and not self.is_over:
                    _log.warning("the head of hoplite does not answer: %s", error)
        self._directory.close()

    def _fulfil(self, wishes: Wishes) -> None:
        self.counts.update(wishes.counts)
        with self._lock:
            self._published.update(wishes.published)
        if wishes.published:
            self.head.kept.remote({name: version for name, (version, _) in wishes.published.items()})
        if wishes.everything or wishes.tokens:
            ray_calls.answer(self.head.supply.remote(self._supply(tokens=wishes.tokens)), _HEAD_SECONDS)
        for node in wishes.nodes:
            with self._lock:
                begin = node not in self._starting
                self._starting.add(node)
            if begin:
                threading.Thread(target=self._start_agent, args=(node,), name="hoplite-start", daemon=True).start()

    def _supply(self, *, tokens: int = 0, failed: dict[str, str] | None = None) -> Supply:
        made = [self._mint() for _ in range(tokens)]
        with self._lock:
            return Supply(self.terms, dict(self._agents), failed or {}, made, dict(self._published))

    def _mint(self) -> tuple[bytes, Any]:
        name = secrets.token_bytes(16)
        token = ray_calls.put(name)
        number = token.binary()
        ray_calls.on_end(token, lambda _: self._dropped.put((name, number)))
        return name, token

    # --- on a thread for each node -----------------------------------------------------------------------------

    def _start_agent(self, node: str) -> None:
        """If it fails, it is tried again when somebody asks again."""
        try:
            with ray_calls.staying():
                failed = self._try_agent(node)
                with self._lock:
                    self._starting.discard(node)  # before somebody hears of it, and asks again
                ray_calls.answer(self.head.supply.remote(self._supply(failed=failed)), _HEAD_SECONDS)
        except (Exception, SystemExit) as error:
            if not self.is_over:
                _log.warning("the head of hoplite does not answer: %s", error)
        finally:
            with self._lock:
                self._starting.discard(node)

    def _try_agent(self, node: str) -> dict[str, str]:
        """Why it failed, if it did."""
        try:
            actor = self._made_agent(node)
        except (Exception, SystemExit) as error:
            if not self.is_over:
                _log.warning("no hoplite agent on the Ray node %s: %s", node, error)
            return {node: str(error)}
        with self._lock:
            if not self._closing.is_set():
                self._agents[node] = actor
                return {}
        ray_calls.kill(actor, no_restart=True)  # `close` did not know of it
        return {node: "hoplite has ended in this job"}

    def _made_agent(self, node: str) -> Any:
        """The actor, when its agent runs. One that died for good has left its name free."""
        options = {
            "name": agent_name(self.job, node),
            "namespace": NAMESPACE,
            "get_if_exists": True,
            "num_cpus": 0,
            "max_restarts": -1,
            "max_task_retries": -1,
            "max_concurrency": 16,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }
        actor_class = ray.remote(concurrency_groups={REDUCE: _REDUCTIONS})(NodeAgent).options(**options)
        actor = actor_class.remote(self.terms.address, self._directory.token, self._memory, self._rate)
        try:
            ray_calls.answer(actor.where.remote(), START_SECONDS)
        except BaseException:
            with contextlib.suppress(Exception):
                ray_calls.kill(actor, no_restart=True)
            raise
        return actor

    # --- on the deleting thread --------------------------------------------------------------------------------

    def _delete(self) -> None:
        """Ray tells of a token's end on a thread of its own, which must not wait: names come here through a queue."""
        while True:
            names: list[bytes] = []
            try:
                dropped = self._next_dropped()
                if dropped is None:
                    return
                made_by_dead = self._made_by_dead(list(dropped)) if dropped else set()
                self.orphans.add({name: dropped[name] for name in made_by_dead})
                names = [*(name for name in dropped if name not in made_by_dead), *self.orphans.over()]
                if names:
                    self._delete_all(names)
            except (Exception, SystemExit) as error:
                if self.is_over:
                    return
                _log.warning("%d objects could not be deleted: %s", len(names), error)

    def _next_dropped(self) -> dict[bytes, bytes] | None:
        """What was dropped within a moment; nothing, if it is time to look at orphans; None at the end."""
        dropped: dict[bytes, bytes] = {}
        try:
            first = self._dropped.get(timeout=ORPHANS_SECONDS if len(self.orphans) else None)
        except queue.Empty:
            return {}
        if first is None:
            return None
        dropped = dict([first])
        time.sleep(_GATHER)
        while len(dropped) < _MOST_AT_ONCE and not self._dropped.empty():
            another = self._dropped.get()
            if another is None:
                return None
            dropped.update([another])
        return dropped

    def _made_by_dead(self, names: list[bytes]) -> set[bytes]:
        """Those of these names whose taker has ended, or is not known. Ray may say of them that they are not used,
        though they are: see `orphans`."""
        try:
            takers = ray_calls.answer(self.head.forget.options(max_task_retries=0).remote(names), _STATUS_SECONDS)
            on: dict[str, set[int]] = {}
            for node, pid in {*takers.values()} - {(self._node, os.getpid())}:
                on.setdefault(node, set()).add(pid)
            with self._lock:
                agents = {node: self._agents[node] for node in on if node in self._agents}
            asked = {node: agent.ended.remote(list(on[node])) for node, agent in agents.items()}
            dead = {(node, pid) for node in on.keys() - asked.keys() for pid in on[node]}
            for node, ref in asked.items():
                dead |= {(node, pid) for pid in self._ended(ref, on[node])}
        except ray.exceptions.RayError:
            return set(names)
        return {name for name in names if takers.get(name) is None or takers[name] in dead}

    def _ended(self, ref: Any, pids: set[int]) -> Collection[int]:
        """All, if their node does not answer."""
        try:
            ended: list[int] = ray_calls.answer(ref, _STATUS_SECONDS)
            return ended
        except ray.exceptions.RayError:
            return pids

    def _delete_all(self, names: list[bytes]) -> None:
        """By any agent: the directory tells the others. It is tried until an agent answers, or none is left."""
        while True:
            with self._lock:
                agents = dict(self._agents)
            if not agents:  # there is no store, and nothing in it
                return
            for node in sorted(agents, key=lambda node: node != self._node):
                if self._closing.is_set():
                    return
                try:
                    ray_calls.answer(agents[node].delete.remote(names), _DELETE_SECONDS)
                    self.freed += len(names)
                    return
                except ray.exceptions.ActorDiedError:  # for good: its node is gone
                    with self._lock:
                        if self._agents.get(node) == agents[node]:
                            del self._agents[node]
                except (HopliteError, ray.exceptions.RayError):
                    continue
            if self._closing.wait(_PAUSE):
                return
