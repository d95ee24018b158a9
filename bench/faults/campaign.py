"""Many cases, one after the other, on one cluster for as long as it is healthy; and what is left at the end.

A campaign can be run in parts: with a file, each run continues with the missing cases. A cluster in which
something went wrong is not used again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from hoplite_ucx.bench.faults.cases import play
from hoplite_ucx.bench.faults.fault_cluster import FaultCluster
from hoplite_ucx.bench.faults.plans import draw
from hoplite_ucx.bench.faults.recording import Record, Recording, Settings, record_of
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.errors import HopliteError

__all__ = ["ROOM", "run_campaign"]

ROOM = 6
"""How many of the largest objects fit a store."""


def run_campaign(
    settings: Settings,
    faults: int,
    *,
    path: Path | None = None,
    seconds: float | None = None,
    only: Sequence[int] | None = None,
    told: Callable[[Record], None] = lambda _: None,
) -> list[Record]:
    """Play the cases that are missing, or `only` these; no new one begins after `seconds`. Returns all records."""
    if not 2 <= settings.machines <= 15:
        raise PeerError(f"a campaign needs 2 to 15 machines, not {settings.machines}")
    if settings.size < 1 << 20:
        raise PeerError(f"objects of {settings.size} bytes are too small to break anything in time; use at least 1MiB")
    recording = Recording(settings, path)
    numbers = list(only) if only is not None else recording.missing(faults)
    until = None if seconds is None else time.monotonic() + seconds
    while numbers and (until is None or time.monotonic() < until):
        numbers = _play_on_one_cluster(settings, numbers, until, recording, told)
    return recording.records


def _play_on_one_cluster(
    settings: Settings,
    numbers: list[int],
    until: float | None,
    recording: Recording,
    told: Callable[[Record], None],
) -> list[int]:
    """Returns the cases that are still to be played."""
    last: Record | None = None
    with ExitStack() as stack:
        cluster = stack.enter_context(FaultCluster(settings.machines, settings.rate, ROOM * settings.size))
        while numbers and (until is None or time.monotonic() < until) and (last is None or not last["problems"]):
            number = numbers.pop(0)
            try:
                last = record_of(play(cluster, draw(settings.seed, number, settings.machines, settings.size)))
            except (PeerError, HopliteError) as error:
                last = {"case": number, "problems": [f"the case could not be completed: {error}"]}
                if words := cluster.new_words().strip():
                    last["problems"].append(f"an agent or the directory said: {words[-2000:]}")
            recording.add(last)
            told(last)
    left = cluster.left()
    if left:
        record = {"case": None, "problems": [f"left behind: {each}" for each in left]}
        recording.add(record)
        told(record)
    return numbers
