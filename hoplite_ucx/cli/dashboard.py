"""`hoplite dashboard`: the live view of a cluster, opened where one is served, or served here until ctrl-C."""

import asyncio
import http.client
import json
import os
import signal
import socket
import urllib.request
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
import uvloop

from hoplite_ucx.errors import HopliteError
from hoplite_ucx.runtime.launch.cluster import ADDRESS
from hoplite_ucx.runtime.launch.inspection import directory_status, local_agents, token_towards
from hoplite_ucx.runtime.launch.view_port import INSTALL, PORT, is_installed, key_for, listen, page_address
from hoplite_ucx.runtime.local.remedies import JOIN_OR_START
from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.wire.addresses import is_loopback, is_unspecified, socket_address

_LOOK_SECONDS = 2.0


def dashboard(
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The directory of the cluster to watch; by default HOPLITE_ADDRESS, or that of this host's agent.",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="The address of this host to serve on; 127.0.0.1 by default.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help=f"By default {PORT}, or any if that is in use.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open it in the browser.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when ready.")] = False,
) -> None:
    """Watch a cluster live in the browser: its hosts, its links, and the trees that are being laid.

    If the cluster's head serves a view on this host, the browser is sent there. Otherwise, or with --host or --port,
    it is served from here until ctrl-C. The address contains a key that lets people look, and nothing else.
    """
    if not is_installed():
        _fail(f"the live view is not installed; {INSTALL}")
    if host is not None and is_unspecified(host):
        raise typer.BadParameter(f"a browser cannot reach {host}: give one of this host's own addresses")
    where = address or os.environ.get(ADDRESS) or _only_cluster()
    try:
        token = token_towards(where)
        cluster = str(directory_status(where, token)["cluster"])
    except HopliteError as error:
        _fail(str(error))
    if host is None and port is None and (page := _served_here(token, cluster)) is not None:
        _show(page, cluster, as_json)
        if browser:
            _open(page)
        return
    try:
        sock = listen(host or "127.0.0.1", port)
    except OSError as error:
        _fail(f"{host or '127.0.0.1'}:{port or PORT}: {error.strerror or error}; choose another port with --port")
    if not token and not is_loopback(sock.getsockname()[0]):
        _fail("a cluster without a token is shown on loopback only; leave --host out")
    with sock, _refusals():
        uvloop.run(_serve(where, token, sock, host or "127.0.0.1", browser=browser, as_json=as_json))
    raise KeyboardInterrupt  # a signal ended it


async def _serve(where: str, token: bytes, sock: socket.socket, host: str, *, browser: bool, as_json: bool) -> None:
    from hoplite_ucx.view.serving import open_view

    loop, over = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, over.set)
    view = await open_view(where, token, sock, host)
    try:
        _show(view.page, view.cluster, as_json)
        if not as_json:
            typer.echo("ctrl-C ends it")
        if browser:
            await loop.run_in_executor(None, _open, view.page)
        await over.wait()
    finally:
        await view.close()


def _only_cluster() -> str:
    agents = local_agents()
    found = {str(agent["directory"]) for agent in agents.status}
    if len(found) > 1:
        _fail(f"this host has agents of several clusters: {', '.join(sorted(found))}; choose one with --address")
    if not found:
        _fail(f"no agent of this user runs on this host; {JOIN_OR_START}, or give --address")
    return found.pop()


def _served_here(token: bytes, cluster: str) -> str | None:
    """The page of a view of this cluster that is served at the usual port."""
    address = socket_address(("127.0.0.1", PORT))
    key = key_for(token, cluster)
    question = urllib.request.Request(f"http://{address}/api/cluster", headers={"Authorization": f"Bearer {key}"})
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(question, timeout=_LOOK_SECONDS) as answer:
            found: dict[str, Any] = json.loads(answer.read(4096))
    except (OSError, ValueError, http.client.HTTPException):  # something else is served there, or nothing
        return None
    return page_address(address, key) if found.get("cluster") == cluster else None


def _show(page: str, cluster: str, as_json: bool) -> None:
    typer.echo(json.dumps({"view": page, "cluster": cluster}) if as_json else f"view of cluster {cluster}: {page}")


def _open(page: str) -> None:
    try:
        opened = webbrowser.open(page)
    except webbrowser.Error:
        opened = False
    if not opened:
        typer.echo("no browser was found on this host: open the address in one that reaches it", err=True)


@contextmanager
def _refusals() -> Iterator[None]:
    """The directory was there a moment ago."""
    try:
        yield
    except TransportError as error:
        _fail(str(error))


def _fail(problem: str) -> NoReturn:
    typer.echo(f"error: {problem}", err=True)
    raise typer.Exit(1)
