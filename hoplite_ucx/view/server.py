"""The view's web server: the page, a stream of changes for each viewer, and single operations to replay. Read-only.

A viewer is a request that does not end: a line of JSON whenever something has changed, at most ten a second. One that
does not read holds only the keys of what it has not seen; it is written to when it reads again, and let go after a
while.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import resources

import msgspec
from aiohttp import web

from hoplite_ucx.view.access import POLICY, own_names, refusal
from hoplite_ucx.view.picture import Picture
from hoplite_ucx.view.source import Source

_BETWEEN = 0.1
_BEAT = 5.0
"""Seconds after which a viewer is told that there is nothing new."""
_READS = 30.0
"""A viewer that has taken nothing for so long is let go."""
_GRACE = 2.0
"""Seconds for which the cluster is asked after the last viewer has gone: pages are reloaded."""
MOST = 64
"""Viewers at a time."""
_BUFFER = 256 << 10
_FILES = {
    "/": ("index.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/tree.js": ("tree.js", "text/javascript"),
    "/style.css": ("style.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ViewServer:
    def __init__(self, source: Source, picture: Picture, cluster: str, key: str, host: str) -> None:
        self._source = source
        self._picture = picture
        self._cluster = cluster
        self._key = key
        self._names = own_names(host)
        self._viewers = 0
        self._last = asyncio.get_running_loop().time()
        self._stopping: asyncio.TimerHandle | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, sock: socket.socket) -> None:
        """Serve on a socket that is bound."""
        app = web.Application(middlewares=[self._guard])
        for path, (name, kind) in _FILES.items():
            app.router.add_get(path, _file(name, kind))
        app.router.add_get("/api/cluster", self._about)
        app.router.add_get("/api/changes", self._changes)
        app.router.add_get("/api/operation/{id}", self._operation)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handle_signals=False)
        await self._runner.setup()
        await web.SockSite(self._runner, sock).start()

    async def close(self) -> None:
        for task in list(self._open):
            task.cancel()
        await self._runner.cleanup()
        await self._source.close()

    def idle(self) -> float:
        """For how many seconds nobody has looked."""
        return 0.0 if self._viewers else asyncio.get_running_loop().time() - self._last

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        key = self._key if request.path.startswith("/api/") else None
        why = refusal(request.headers, self._names, key)
        if why is not None:
            return web.Response(status=why[0], text=why[1] + "\n", headers=POLICY)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            return web.Response(status=error.status, text=f"{error.reason}\n", headers=POLICY)
        if not response.prepared:
            response.headers.update(POLICY)
        return response

    async def _about(self, _: web.Request) -> web.Response:
        return _json({"cluster": self._cluster})

    async def _operation(self, request: web.Request) -> web.Response:
        whole = self._picture.whole(request.match_info["id"])
        if whole is None:
            raise web.HTTPNotFound(reason="this operation is not kept any more")
        return _json(whole)

    async def _changes(self, request: web.Request) -> web.StreamResponse:
        if self._viewers >= MOST:
            raise web.HTTPServiceUnavailable(reason=f"{MOST} viewers look already: close another one")
        response = web.StreamResponse(headers={**POLICY, "Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        if request.transport is not None:
            request.transport.set_write_buffer_limits(high=_BUFFER)
        changes = self._picture.join()
        self._arrived()
        task = asyncio.current_task()
        if task is not None:
            self._open.add(task)
        try:
            with suppress(ConnectionError, TimeoutError):
                quiet = 0.0
                while True:
                    message = changes.take()
                    if message is None and quiet >= _BEAT:
                        message = {"now": self._picture.now}
                    if message is not None:
                        async with asyncio.timeout(_READS):
                            await response.write(msgspec.json.encode(message) + b"\n")
                    quiet = 0.0 if message is not None else quiet + _BETWEEN
                    await asyncio.sleep(_BETWEEN)
        finally:
            if task is not None:
                self._open.discard(task)
            self._picture.leave(changes)
            self._left()
        if request.transport is not None:
            request.transport.abort()
        return response

    def _arrived(self) -> None:
        self._viewers += 1
        if self._stopping is not None:
            self._stopping.cancel()
            self._stopping = None
        self._source.start()

    def _left(self) -> None:
        self._viewers -= 1
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        if not self._viewers:
            self._stopping = loop.call_later(_GRACE, self._source.stop)


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _file(name: str, kind: str) -> _Handler:
    body = resources.files("hoplite_ucx.view").joinpath("page", name).read_bytes()

    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8")

    return handler
