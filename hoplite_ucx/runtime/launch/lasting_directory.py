"""A directory that is started again on its port whenever it ends.

The successor has the same cluster id and a higher incarnation; nodes come back to it by themselves. The pause before a
restart doubles up to a bound, and is short again after a directory that ran for a while.
"""

import os
import time
from collections.abc import Callable, Mapping

from hoplite_ucx.protocol.errors import HopliteError
from hoplite_ucx.runtime.launch import processes
from hoplite_ucx.runtime.launch.cluster import directory_task
from hoplite_ucx.runtime.launch.processes import Child
from hoplite_ucx.runtime.settings import HostSettings
from hoplite_ucx.transports.wire.addresses import parse_address

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_STEADY = 10.0
"""A directory that ran this long was well: the next pause is short again."""


class LastingDirectory:
    """For one thread at a time. The thread that starts the process must live as long: the process ends with it."""

    def __init__(
        self,
        token: bytes,
        host: str,
        port: int,
        tell: Callable[[str], None],
        variables: Mapping[str, str] | None = None,
        settings: HostSettings | None = None,
    ) -> None:
        self._token = token
        self._host = host
        self._port = port
        self._tell = tell
        self._variables = variables
        self._settings = settings
        self._pause = _FIRST_PAUSE
        self._since = 0.0
        self.cluster = os.urandom(8).hex()
        self.child: Child | None = None
        self.address = ""

    def start(self) -> None:
        """Returns when it is ready; raises a typed error if it does not become so."""
        task = directory_task(
            self._token,
            self._host,
            self._port,
            cluster=self.cluster,
            successor=self._since > 0,
            settings=self._settings,
        )
        self.child = processes.spawn(
            "directory",
            task,
            tied_to_thread=True,
            variables=self._variables,
            settings=(self._settings or HostSettings()).processes,
        )
        self._since = time.monotonic()
        self.address = self.child.report["address"]
        self._port = parse_address(self.address)[1]

    def running(self) -> bool:
        return self.child is not None and self.child.running()

    def restart(self, pause: Callable[[float], object] = time.sleep) -> None:
        """Try once. It has ended, or did not start again the last time. A `pause` that returns False gives up."""
        if time.monotonic() - self._since >= _STEADY:
            self._pause = _FIRST_PAUSE
        ended, self.child = self.child, None
        if ended is not None:
            self._tell(f"the directory exited with status {ended.process.returncode}; it restarts in {self._pause:g} s")
            ended.stop()
        if pause(self._pause) is False:
            return
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        try:
            self.start()
            self._tell(f"the directory runs again at {self.address}")
        except HopliteError as error:
            self._tell(str(error))

    def stop(self) -> None:
        ended, self.child = self.child, None
        if ended is not None:
            ended.stop()
