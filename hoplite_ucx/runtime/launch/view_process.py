"""A live view that a program asks for: of its embedded cluster, or of any other whose token it has."""

import logging
import os
import select

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.runtime.launch.cluster import ADDRESS
from hoplite_ucx.runtime.launch.inspection import directory_status, token_towards
from hoplite_ucx.runtime.launch.owned_processes import OwnedProcess
from hoplite_ucx.runtime.launch.view_port import INSTALL, ViewPort, is_installed, key_for, page_address
from hoplite_ucx.runtime.settings import ProcessSettings
from hoplite_ucx.runtime.worker.checks import check_path, check_settings, check_text, check_token, invalid, is_whole
from hoplite_ucx.settings.reading import CONFIG

_log = logging.getLogger("hoplite.launch")

_LOOK_SECONDS = 5.0
_MAX_PORT = 65535


class ViewProcess(OwnedProcess):
    """A live view that ends with this program: made by `start_view`. Its process runs only while somebody looks."""

    def __init__(self, address: str, token: bytes, cluster: str, port: ViewPort, settings: ProcessSettings) -> None:
        super().__init__("view", settings)
        self._address = address
        self._token = token
        self._port = port
        self._page = page_address(port.address, key_for(token, cluster))
        self._start()

    @property
    def page(self) -> str:
        """The address for the browser. It contains a key that lets people look, and nothing else."""
        return self._page

    def __repr__(self) -> str:
        return f"<ViewProcess at {self._port.address}{'' if self.running else ', ended'}>"

    def _begin(self) -> None:
        pass  # the first visitor starts it

    def _watch(self) -> None:
        while not self._closing:
            select.select([self._wake, self._port.waits_for()], [], [], _LOOK_SECONDS)
            if not self._closing:
                self._port.look(self._address, self._token)

    def _end(self) -> None:
        self._port.close()


def start_view(
    address: str | None = None,
    *,
    token: str | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    config: str | os.PathLike[str] | None = None,
) -> ViewProcess:
    """A live view for the browser of the cluster whose directory is at `address`: by default, of the one that this
    process started with `init`, or that `HOPLITE_ADDRESS` names. Open its `page`.

    It is served at `host` and `port`: by default at port 7778 or, if that is in use, at any; it ends with `close()`,
    its `with` block or this program. The token is found as `hoplite status` finds it, unless it is given. `config` is a
    file as in `HOPLITE_CONFIG`: a cluster with TLS is shown to those who have a certificate of it.

    Raises `InvalidRequestError` for what cannot be meant, or if the extra `view` is not installed, and `ClosedError` if
    the directory does not answer or the port is in use.
    """
    check_text("address", address, "write host:port, such as head:7777")
    check_text("host", host, "give an address of this host, such as 198.18.0.1")
    if port is not None and (not is_whole(port) or not 0 <= port <= _MAX_PORT):
        raise invalid(f"a port is a number from 0 to {_MAX_PORT}, not {port!r}", "correct it, or leave it out")
    path = check_path("config", config)
    given, settings = check_token(token), check_settings(path)
    if not is_installed():
        raise invalid("the live view is not installed", INSTALL)
    where = address if address is not None else os.environ.get(ADDRESS)
    if where is None:
        raise invalid("there is no cluster to show", "call init() first, or give the address of a directory")
    secret = given if given is not None else token_towards(where)
    cluster = str(directory_status(where, secret, settings)["cluster"])
    variables = {} if path is None else {CONFIG: os.path.abspath(path)}
    try:
        listening = ViewPort(host, None if port is None else int(port), _log.warning, variables)
    except OSError as error:
        detail = f"the live view cannot be served at {host}:{port}: {error.strerror or error}"
        raise Failure(FailureKind.CLOSED, detail, "choose another port").exception() from error
    return ViewProcess(where, secret, cluster, listening, settings.processes)
