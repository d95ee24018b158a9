"""In the scheduler: the directory, who may join, what was lost, and what Dask forgot.

The plugin owns the directory's process and gives its address and token to workers and clients that ask on Dask's own
connections. It keeps no books of lifetimes: it hears from Dask when a key is forgotten, and has the key's objects
deleted by a worker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any

from distributed import SchedulerPlugin
from distributed.comm import get_address_host

from hoplite_ucx.dask import access, anchors
from hoplite_ucx.dask.terms import Terms
from hoplite_ucx.dask.threads import in_thread
from hoplite_ucx.runtime.launch.owned_processes import DirectoryProcess, start_directory

TERMS = "hoplite_terms"
PREFETCH = "hoplite_prefetch"
MADE = "hoplite_made"
FORGET = "hoplite_forget"
DELETE = "hoplite_delete"
FETCH = "hoplite_fetch"

_log = logging.getLogger("distributed.hoplite")

_GATHER = 0.05
"""What Dask forgets within this time is deleted together."""
_RETRY = 1.0
_DELETE_SECONDS = 30.0
_RECOMPUTED = 5
"""An object that is lost so often is not made again: something is wrong."""


class HopliteScheduler(SchedulerPlugin):
    name = access.PLUGIN
    idempotent = True

    def __init__(self, memory: int | None, rate: float | None) -> None:
        self._memory = memory
        self._rate = rate

    async def start(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._made: dict[Any, set[bytes]] = {}
        """What tasks have shared, by their keys."""
        self._losses: dict[Any, int] = {}
        self._doomed: set[bytes] = set()
        self._deleting: asyncio.Task[None] | None = None
        host = _host(scheduler.address)
        self._directory: DirectoryProcess = await in_thread(start_directory, host)
        scheduler.handlers[TERMS] = self.terms
        scheduler.handlers[PREFETCH] = self.prefetch
        scheduler.stream_handlers[MADE] = self.made
        scheduler.stream_handlers[access.LOST] = self.lost

    async def close(self) -> None:
        if self._deleting is not None:
            self._deleting.cancel()
        await in_thread(self._directory.close)

    # --- what others ask ---------------------------------------------------------------------------------------

    async def terms(self) -> dict[str, Any]:
        directory = self._directory
        return Terms(directory.cluster_id, directory.address, directory.token, self._memory, self._rate).to_dict()

    async def prefetch(self, ref: bytes, workers: list[str] | None = None) -> dict[str, str]:
        """Have one worker on every host get the object into the host's store. Returns what failed, by worker."""
        hosts: dict[str, str] = {}
        known = {name for address, worker in self._scheduler.workers.items() for name in (address, worker.name)}
        if unknown := set(workers or ()) - known:
            return dict.fromkeys(unknown, "there is no such worker")
        for address, worker in self._scheduler.workers.items():
            if workers is None or address in workers or worker.name in workers:
                hosts.setdefault(worker.host if "inproc:" not in address else "", address)
        message = {"op": FETCH, "ref": ref}
        answers = await self._scheduler.broadcast(msg=message, workers=list(hosts.values()), on_error="return")
        return {address: str(answer) for address, answer in answers.items() if answer != "OK"}

    def made(self, key: Any, ref: bytes, **_: Any) -> None:
        """A task shared an object."""
        if key in self._scheduler.tasks:
            self._made.setdefault(key, set()).add(ref)
        else:
            self._doom([ref])  # it was forgotten meanwhile

    def lost(self, key: Any, **_: Any) -> None:
        """Every copy of a key's object is gone, though Dask believes that the key is there. As Dask itself does when a
        worker dies with data: what a task made is made again, what a client scattered is cancelled."""
        task = self._scheduler.tasks.get(key)
        if task is None or task.state != "memory":
            return  # somebody else noticed it first
        self._losses[key] = self._losses.get(key, 0) + 1
        if str(key).startswith(anchors.BROADCAST) or self._losses[key] > _RECOMPUTED:
            _log.error("every copy of the object of %s is lost, and cannot be made again", key)
            task.has_lost_dependencies = True
        else:
            _log.warning("every copy of the object of %s is lost: it is computed again", key)
        self._scheduler.transitions({key: "released"}, f"{access.LOST}-{time.time()}")

    # --- what Dask forgets -------------------------------------------------------------------------------------

    def transition(self, key: Any, _start: str, finish: str, *_args: Any, **_more: Any) -> None:
        if finish == "forgotten":
            refs = self._made.pop(key, None) or set()
            self._losses.pop(key, None)
            if (ref := anchors.ref_of(key)) is not None:
                refs = {*refs, ref}
            if refs:
                self._doom(refs)
        elif finish == "erred" and str(key).startswith(anchors.SHARE):
            ref = anchors.ref_of(key)
            if ref is not None:
                self._doom([ref])  # reductions that wait for it must not wait for ever

    def restart(self, scheduler: Any) -> None:  # noqa: ARG002
        """Dask has forgotten all tasks, some of them without a word."""
        made, self._made = self._made, {}
        self._losses.clear()
        if made:
            self._doom(set().union(*made.values()))

    def _doom(self, refs: Iterable[bytes]) -> None:
        self._doomed.update(refs)
        if self._deleting is None or self._deleting.done():
            self._deleting = asyncio.get_running_loop().create_task(self._delete())

    async def _delete(self) -> None:
        await asyncio.sleep(_GATHER)
        while self._doomed:
            refs, self._doomed = list(self._doomed), set()
            for worker in self._scheduler.stream_comms:
                self._scheduler.worker_send(worker, {"op": FORGET, "refs": refs})
            if not await self._deleted_by_anyone(refs):
                self._doomed.update(refs)
                await asyncio.sleep(_RETRY)  # nobody is there, as during a restart

    async def _deleted_by_anyone(self, refs: list[bytes]) -> bool:
        for state in list(self._scheduler.running):
            worker = self._scheduler.rpc(state.address)
            try:
                answer = await asyncio.wait_for(getattr(worker, DELETE)(refs=refs), _DELETE_SECONDS)
            except (OSError, RuntimeError, TimeoutError):  # it is gone, or this scheduler closes: another one is asked
                continue
            if answer == "OK":
                return True
        return False


def _host(address: str) -> str:
    """Where the directory listens: as the scheduler does, where its workers reach it."""
    return "127.0.0.1" if address.startswith("inproc:") else str(get_address_host(address))
