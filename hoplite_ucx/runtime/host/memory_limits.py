"""How much memory the processes of this host may use, and so the largest possible limit of its store.

With a larger limit, the store would still get memory: but the kernel would kill its agent, or the user's programs, once
it is used.
"""

import os
from contextlib import suppress
from pathlib import Path

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.settings import GIB

_USUAL = 4 * GIB


def store_limit(wanted: int | None) -> int:
    """The wanted limit, if this host has that much memory; by default 4 GiB, or half of what it has."""
    most = host_memory()
    if wanted is None:
        return min(_USUAL, most // 2)
    if wanted > most:
        detail = f"a store of {_gib(wanted)} does not fit: this host has {_gib(most)} of memory"
        remedy = f"give less, such as half of it ({most // 2 >> 20}MiB), to leave room for programs"
        raise Failure(FailureKind.INVALID, detail, remedy).exception()
    return wanted


def host_memory(root: Path = Path("/")) -> int:
    """The memory of this machine, or of this process's control group, in bytes."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([installed, *_group_limits(root)])


def _group_limits(root: Path) -> list[int]:
    """Those of the process's control group and of all groups that it is in; of either version of control groups."""
    limits: list[int] = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return limits
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            mounted, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        elif not controllers:
            mounted, name = root / "sys/fs/cgroup", "memory.max"
        else:
            continue
        group = mounted / path.lstrip("/")  # which may not be there: a container sees its own as the topmost
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # no such file, or "max"
                limits.append(int((folder / name).read_text()))
            if folder == mounted:
                break
    return limits


def _gib(size: int) -> str:
    return f"{round(size / GIB, 1):,g} GiB"
