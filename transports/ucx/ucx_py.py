"""UCX through ucx-py (`ucp`), the predecessor of ucxx, for machines that have only that. A thin wrapper.

**It has never run on a real ucx-py.** ucx-py ended with release 0.45 and could not be installed where this was written
(its package is a stub that fetches the wheel from elsewhere), so it follows that release's source, and its test drives
a made-up module with the same calls. Where ucxx is installed, ucxx is used.

What differs below: transfers report by a callback instead of being asked; a send that is complete at once gives no
request; the worker's descriptor is ours to close; closing an endpoint flushes it first and waits for that, so closing
a link to a stopped peer may hold up this node's other UCX links for as long as the peer is stopped.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from typing import Any

from hoplite_ucx.transports.ucx.library import RESOURCE, Lane, Library

__all__ = ["UcxPyLibrary"]


class UcxPyLibrary(Library):
    def _load(self) -> None:
        self._api = importlib.import_module("ucp._libs.ucx_api")
        self.array = importlib.import_module("ucp._libs.arr").Array
        self.error = importlib.import_module("ucp._libs.exceptions").UCXBaseException
        self.tag = int
        self.whole_tag = None  # ucx-py's default comparison
        self.version = tuple(self._api.get_ucx_version())
        self._query = None

    def resources(self, context: Any) -> list[Lane]:
        return [Lane(*found) for found in RESOURCE.findall(str(context.info()))]

    def worker(self, context: Any) -> _Worker:
        return _Worker(self._api, self._api.UCXWorker(context))

    def endpoint(self, worker: _Worker, address: bytes, *, to_peer: bool = True) -> _Endpoint:
        there = self._api.UCXAddress.from_buffer(address)
        real = self._api.UCXEndpoint.create_from_worker_address(worker.real, there, to_peer)
        return _Endpoint(self._api, real, worker)


class _Request:
    """A transfer, as ucxx shows it: it can be asked whether it is over, and how it ended."""

    def __init__(self, worker: _Worker) -> None:
        self._worker = worker
        self.completed = False
        self._failure: Exception | None = None
        self._kept: Any = None

    def posted(self, real: Any) -> _Request:
        """ucx-py returns None if the transfer was over at once; the callback may have come before this."""
        if real is None:
            self.completed = True
        else:
            self._kept = real
        return self

    def ended(self, _request: Any, failure: Exception | None) -> None:
        self.completed = True
        self._failure = failure
        self._kept = None
        self._worker.ended += 1

    def check_error(self) -> None:
        if self._failure is not None:
            raise self._failure


class _Worker:
    def __init__(self, api: Any, real: Any) -> None:
        self.real = real
        self._api = api
        self._address = real.get_address()
        self.address = memoryview(bytes(self._address))
        self.epoll_file_descriptor: int = real.init_blocking_progress_mode()
        self.progress = real.progress
        self.arm = real.arm
        self.ended = 0  # how many transfers have been over

    def progress_once(self) -> bool:
        """Whether a transfer ended by it; ucx-py does not say whether anything else happened."""
        before = self.ended
        self.real.progress()
        return self.ended > before

    def tag_recv(self, array: Any, tag: int, _mask: None) -> _Request:
        request = _Request(self)
        return request.posted(self._api.tag_recv_nb(self.real, array, array.nbytes, tag, cb_func=request.ended))

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            os.close(self.epoll_file_descriptor)


class _Endpoint:
    def __init__(self, api: Any, real: Any, worker: _Worker) -> None:
        self._api = api
        self._real = real
        self._worker = worker

    @property
    def handle(self) -> int:
        return int(self._real.handle)

    def tag_send(self, array: Any, tag: int) -> _Request:
        request = _Request(self._worker)
        return request.posted(self._api.tag_send_nb(self._real, array, array.nbytes, tag, cb_func=request.ended))

    def close_blocking(self, **_how_long: int) -> None:
        self._real.close()  # ucx-py cannot bound it
