"""How much memory this process may lock, and how much of it UCX may keep locked. RDMA locks what it sends and receives.

Below `LEAST`, UCX cannot even have its own buffers, and its streams wait for ever without a word; so there is no RDMA.
With a limit above that, UCX's cache of locked memory is bounded: it would grow until the next object cannot be locked.
"""

import resource
from pathlib import Path

__all__ = ["LEAST", "cached", "lockable"]

LEAST = 256 << 20
"""A worker locks 52 MiB on each device for itself (UCX 1.23, rc); the rest is for what is under way and the cache."""

_PROC = Path("/proc/self")
_CAP_IPC_LOCK = 14


def lockable(process: Path = _PROC) -> int:
    """Bytes; -1 is no limit, which also has who may lock any memory (`CAP_IPC_LOCK`, as root has it)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return -1 if soft == resource.RLIM_INFINITY or _may_lock_all(process) else soft


def cached(limit: int) -> int | None:
    """How much UCX may keep locked of what it sent and received; None is all of it."""
    return None if limit < 0 else limit // 4


def _may_lock_all(process: Path) -> bool:
    """The capability counts in the first user namespace alone, whose users are everybody's."""
    try:
        users = (process / "uid_map").read_text().split()
        status = (process / "status").read_text().splitlines()
    except OSError:
        return False
    effective = next((int(line.split()[1], 16) for line in status if line.startswith("CapEff:")), 0)
    return users == ["0", "0", str((1 << 32) - 1)] and bool(effective >> _CAP_IPC_LOCK & 1)
