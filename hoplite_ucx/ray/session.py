"""A process's part in the hoplite of a Ray job: the agent of its node, and names for new objects.

It joins when it first needs to: it asks the head for its node's agent actor, and that for the agent. After an agent or
its actor was restarted, the next call joins the new one. Calls of Ray are made aside (see `threads`), and every wait is
bounded.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, TypeVar

import ray
import ray.util.client

import hoplite_ucx as hoplite
from hoplite_ucx.errors import ClosedError, HopliteError
from hoplite_ucx.ray import ray_calls
from hoplite_ucx.ray.counts import Counts
from hoplite_ucx.ray.errors import closed, not_started
from hoplite_ucx.ray.terms import NAMESPACE, Terms, head_name
from hoplite_ucx.ray.threads import aside

R = TypeVar("R")

JOIN_SECONDS = 60.0
"""For a node's agent actor and its agent to start, on a busy machine too."""
RETRY_SECONDS = 60.0
"""After joining failed, or there were no names, arrays go by plain Ray for so long, before it is tried again."""
_BATCH = 32
_PAUSE = 0.1
_COUNT_SECONDS = 10.0
_NEVER = float("-inf")


class Session:
    def __init__(self, job: str) -> None:
        self.job = job
        self.counts = Counts(self._report)
        self._lock = threading.Lock()
        """Held while this process joins. Nobody waits for it without a bound."""
        self._cluster: hoplite.Cluster | None = None
        self._head: Any = None
        self._agent: Any = None
        self._dead_agent: Any = None
        """An agent actor that died for good, which the head may not know yet."""
        self._terms: Terms | None = None
        self._names: deque[tuple[bytes, Any]] = deque()
        self._refused = _NEVER
        """When joining failed, or nobody handed out names, unless it went well since then."""

    # --- what others use ---------------------------------------------------------------------------------------

    def cluster(self, seconds: float = JOIN_SECONDS) -> hoplite.Cluster:
        """The cluster, through this node's agent, which answers. Waits while an agent is started."""
        return self.call(_answering, seconds)

    def call(self, work: Callable[[hoplite.Cluster], R], seconds: float = JOIN_SECONDS) -> R:
        """Make a call that may be made again. If the agent is gone, it is made with the next one; the seconds are for
        waiting for that."""
        ends: float | None = None
        while True:
            cluster = self._joined(ends or time.monotonic() + seconds)
            try:
                return work(cluster)
            except ClosedError:
                ends = ends or time.monotonic() + seconds
                if time.monotonic() >= ends:
                    raise
                self._leave(cluster)
                time.sleep(_PAUSE)

    @property
    def is_refused(self) -> bool:
        """Whether nothing could be put a moment ago: then nobody waits for another attempt."""
        return time.monotonic() - self._refused < RETRY_SECONDS

    def new_name(self, seconds: float = JOIN_SECONDS) -> tuple[bytes, Any]:
        """The name of an object to be put, and its release token."""
        ends = time.monotonic() + seconds
        while True:
            try:
                return self._names.popleft()
            except IndexError:
                self._fetch_names(ends)

    def leave(self) -> None:
        """Hoplite ends in this job."""
        cluster = self._cluster
        if cluster is not None:
            self._leave(cluster)
        self._forget()
        self._refused = _NEVER

    def ask(self, question: Callable[[Any], Any], seconds: float = JOIN_SECONDS) -> Any:
        """The answer of the job's head actor to a call. Raises `ClosedError`."""
        return aside(lambda: self._ask(question, seconds), seconds)

    def agent(self, seconds: float = JOIN_SECONDS) -> Any:
        """The agent actor of this node."""
        self._joined(time.monotonic() + seconds)
        return self._agent or aside(lambda: self._find_actor(seconds), seconds)

    def terms(self, seconds: float = JOIN_SECONDS) -> Terms:
        """As the job's hoplite was started."""
        return aside(lambda: self._find_terms(seconds), seconds)

    # --- joining -----------------------------------------------------------------------------------------------

    def _joined(self, ends: float) -> hoplite.Cluster:
        cluster = self._cluster
        if cluster is not None and cluster.is_open:
            return cluster
        if not self._lock.acquire(timeout=max(0.0, ends - time.monotonic())):
            raise closed("this process's node has no hoplite agent yet", "see the log of the driver")
        try:
            cluster = self._cluster
            if cluster is None or not cluster.is_open:
                cluster = self._cluster = self._join(ends)
                self._refused = _NEVER
            return cluster
        except HopliteError:
            self._refused = time.monotonic()
            raise
        finally:
            self._lock.release()

    def _leave(self, cluster: hoplite.Cluster) -> None:
        with self._lock:
            if self._cluster is cluster:
                self._cluster = None
                cluster.close()

    def _join(self, ends: float) -> hoplite.Cluster:
        while True:
            left = max(1.0, ends - time.monotonic())
            try:
                address, agent = aside(lambda left=left: self._find_agent(left), left)  # type: ignore[misc]
                cluster = hoplite.connect(address, agent=agent)
                if self._terms is not None:
                    for hook in _when_joined:
                        hook(self._terms)
                return cluster
            except ClosedError:
                if time.monotonic() + _PAUSE >= ends or self._head is None:
                    raise
            time.sleep(_PAUSE)

    # --- on other threads: what is asked of Ray ----------------------------------------------------------------

    def _find_agent(self, seconds: float) -> tuple[str, str]:
        """Raises `ClosedError`."""
        ends = time.monotonic() + seconds
        self._find_terms(seconds)
        actor = self._agent or self._find_actor(max(1.0, ends - time.monotonic()))
        try:
            found: tuple[str, str] = ray_calls.answer(actor.where.remote(), max(1.0, ends - time.monotonic()))
            return found
        except ray.exceptions.ActorDiedError as error:  # for good: Ray restarts it otherwise
            self._dead_agent, self._agent = actor, None
            raise closed(f"this Ray node's hoplite agent has died: {error}", "another one is started") from error
        except ray.exceptions.RayError as error:
            raise closed(f"this Ray node's hoplite agent does not answer: {error}", "see its log") from error

    def _find_actor(self, seconds: float) -> Any:
        dead, self._dead_agent = self._dead_agent, None
        actor, why = self._ask(lambda head: head.agent_of.remote(ray_calls.node_id(), dead), seconds)
        if actor is None:
            raise closed(f"this Ray node has no hoplite agent: {why}", "see the log of the driver")
        self._agent = actor
        return actor

    def _find_terms(self, seconds: float) -> Terms:
        terms = self._terms
        if terms is None:
            terms = self._terms = self._ask(lambda head: head.terms.remote(), seconds)
        if terms is None:
            raise closed("hoplite's owner, the driver, does not answer", "see whether the driver is stopped or busy")
        return terms

    def _ask(self, question: Callable[[Any], Any], seconds: float) -> Any:
        """A question to the head. Raises `ClosedError`."""
        try:
            try:
                return ray_calls.answer(question(self._find_head()), seconds)
            except ray.exceptions.ActorDiedError:  # for good: hoplite was ended, and perhaps started again
                self._forget()
                return ray_calls.answer(question(self._find_head()), seconds)
        except ray.exceptions.RayError as error:
            detail = f"hoplite's head, an actor of this Ray job, does not answer: {error}"
            raise closed(detail, "see the log of the driver") from error

    def _find_head(self) -> Any:
        head = self._head
        if head is None:
            try:
                head = self._head = ray_calls.get_actor(head_name(self.job), namespace=NAMESPACE)
            except ValueError:
                raise not_started(self.job) from None
        return head

    def _forget(self) -> None:
        """Hoplite has ended in this job. If it is started again, nothing is as it was."""
        self._head = self._agent = self._dead_agent = self._terms = None
        self._names.clear()

    # --- names -------------------------------------------------------------------------------------------------

    def _fetch_names(self, ends: float) -> None:
        taken: list[tuple[bytes, Any]] = []
        left = ends - time.monotonic()
        try:
            if left > 0:
                taker = ray_calls.node_id(), os.getpid()
                taken = self.ask(lambda head: head.take.remote(_BATCH, taker), left)
        finally:
            self._refused = _NEVER if taken else time.monotonic()
        self._names.extend(taken)
        if not taken:
            raise closed("hoplite's owner, the driver, hands out no names", "see whether the driver is stopped or busy")

    def _report(self, counts: Counter[str]) -> None:
        try:
            self.ask(lambda head: head.count.remote(counts), _COUNT_SECONDS)
        except HopliteError:
            return  # they are in this process's own total


def _answering(cluster: hoplite.Cluster) -> hoplite.Cluster:
    if not cluster._of.client.is_answered():
        raise closed("this node's agent is gone", "another one is started")
    return cluster


_when_joined: list[Callable[[Terms], None]] = []


def when_joined(hook: Callable[[Terms], None]) -> Callable[[Terms], None]:
    """The hook is called whenever this process has joined an agent."""
    _when_joined.append(hook)
    return hook


_sessions: dict[tuple[str, str], Session] = {}
_lock = threading.Lock()


def session(job: str | None = None) -> Session:
    """Of a job; without one, of the job that this process belongs to."""
    if not ray.is_initialized():
        raise closed("Ray is not initialised in this process", "call hoplite_ucx.ray.init() or ray.init() first")
    if ray.util.client.ray.is_connected():
        raise closed("a program of Ray Client is not in the cluster", "make this call in a task or an actor")
    cluster, own = ray_calls.whereabouts()
    key = (cluster, job or own)
    found = _sessions.get(key)
    if found is None:
        with _lock:
            found = _sessions.setdefault(key, Session(job or own))
    return found


def _leave_all() -> None:
    """Before this process leaves Ray."""
    with _lock:
        left = list(_sessions.values())
        _sessions.clear()
    for each in left:
        each.leave()


ray_calls.before_shutdown(_leave_all)


def cluster() -> hoplite.Cluster:
    """The hoplite cluster of this process's Ray job, through its node's agent: joined when it is first needed, and
    again after the agent was restarted. Raises `ClosedError` if there is none, or it does not come in time."""
    return session().cluster()
