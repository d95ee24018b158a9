"""The address of a live view, which is there before the view is: the view's process is started by its first visitor.

The port is listened on here, so that the address can be printed and a port in use is noticed at once. The process gets
the socket, ends when nobody has looked for a while, and is started again by the next visitor. Nothing of it is loaded
in this process, and nothing at all runs while nobody looks.
"""

import hashlib
import hmac
import importlib.util
import json
import os
import secrets
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

from hoplite_ucx.runtime.launch import processes
from hoplite_ucx.runtime.launch.processes import Child
from hoplite_ucx.transports.wire.addresses import socket_address

PROGRAM = "hoplite_ucx.view"
LIBRARY = "aiohttp"
PORT = 7778
INSTALL = f"{sys.executable} -m pip install 'hoplite-ucx[view]'"
_BACKLOG = 64
_STOP_SECONDS = 3.0
_PURPOSE = b"hoplite view of cluster "
_KEY_BYTES = 16


def key_for(token: bytes, cluster: str) -> str:
    """The same for every view of a cluster. Without a token nobody could be kept from making it: then it is random."""
    if not token:
        return secrets.token_hex(_KEY_BYTES)
    return hmac.new(token, _PURPOSE + cluster.encode(), hashlib.sha256).hexdigest()[: 2 * _KEY_BYTES]


def page_address(address: str, key: str) -> str:
    return f"http://{address}/#key={key}"


def is_installed() -> bool:
    return importlib.util.find_spec(LIBRARY) is not None


def listen(host: str, port: int | None) -> socket.socket:
    """At this port; None is the usual one, or any if that is taken. Raises an `OSError` if the port is in use."""
    family, _, _, _, name = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
    tries = [PORT, 0] if port is None else [port]
    for number in tries:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((name[0], number, *name[2:]))
            sock.listen(_BACKLOG)
        except OSError:
            sock.close()
            if number == tries[-1]:
                raise
        else:
            return sock
    raise AssertionError("there is always a last try")


class ViewPort:
    """For one thread, which must live as long as the view may run. It never waits for the view."""

    def __init__(
        self, host: str, port: int | None, tell: Callable[[str], None], variables: Mapping[str, str] | None = None
    ) -> None:
        """Raises an `OSError` if the port is in use."""
        self._sock = listen(host, port)
        self._host = host
        self._tell = tell
        self._variables = variables
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        self.address = socket_address(self._sock.getsockname())

    def waits_for(self) -> int:
        """Which descriptor becomes readable when there is something to do: a visitor comes, or the process ends."""
        return self._sock.fileno() if self._process is None else _output(self._process)

    def look(self, directory: str, token: bytes) -> None:
        """To be called when that descriptor is readable, or at any time."""
        if self._process is None:
            if _readable(self._sock.fileno()):
                self._start(directory, token)
        elif _readable(_output(self._process)):
            self._hear(self._process)

    def _start(self, directory: str, token: bytes) -> None:
        task = {"directory": directory, "token": token.hex(), "host": self._host, "fd": self._sock.fileno()}
        try:
            self._process = processes.start(
                "view",
                tied_to_thread=True,
                variables=self._variables,
                program=PROGRAM,
                descriptors=[self._sock.fileno()],
            )
        except OSError as error:
            self._tell(f"the live view cannot be shown: {error}")
            self._turn_away()
            return
        self._said = b""
        processes.tell(self._process, task)

    def _hear(self, process: "subprocess.Popen[bytes]") -> None:
        """It says that it is ready, or why it is not; or it has ended."""
        said = os.read(_output(process), 65536)
        self._said += said
        if said:
            return
        self._process = None
        processes.abandon(process)
        with suppress(ValueError):
            report = json.loads(self._said)
            if "error" in report:
                self._tell(f"the live view cannot be shown: {report['error']}; {report['remedy']}")
        if process.returncode != 0:
            self._turn_away()

    def _turn_away(self) -> None:
        """Close the connections of visitors: they would start it again at once."""
        self._sock.setblocking(False)
        with suppress(OSError):
            while True:
                self._sock.accept()[0].close()
        self._sock.setblocking(True)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            Child(process, {}, _STOP_SECONDS).stop()
        self._sock.close()


def _output(process: "subprocess.Popen[bytes]") -> int:
    assert process.stdout is not None
    return process.stdout.fileno()


def _readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])
