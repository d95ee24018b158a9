"""The RDMA ports that an engine uses, and whether the kernel says that they are up.

UCX must not be asked to connect over a port that went down: the message with which it begins fails at once, which ends
the queue pair that all its connections begin on, and then UCX ends the process. So links ask here first, and those that
there are end as soon as their port does.
"""

from collections.abc import Iterable
from pathlib import Path

from hoplite_ucx.transports.ucx.library import Lane

__all__ = ["Ports"]

_CLASS = Path("/sys/class/infiniband")


class Ports:
    """Of these lanes, those that are RDMA: their devices are called `mlx5_0:1`, and the kernel knows `mlx5_0`."""

    def __init__(self, lanes: Iterable[Lane], known: Path = _CLASS) -> None:
        named = dict.fromkeys(lane.device for lane in lanes if ":" in lane.device)
        places = {name: known / name.replace(":", "/ports/") / "state" for name in named}
        self._states = {name: state for name, state in places.items() if state.parents[2].is_dir()}

    def down(self) -> list[str]:
        """Those that were up when UCX started, and are not any more."""
        return [name for name, state in self._states.items() if not _active(state)]


def _active(state: Path) -> bool:
    try:
        return state.read_text().partition(":")[2].strip() == "ACTIVE"
    except OSError:  # the device is gone
        return False
