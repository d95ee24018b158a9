"""Collectives over every way of linking a list of machines, beside perftest; one report, with the configuration to use.

Each way has a live cluster of its own, one after the other: nothing else runs meanwhile. A way that does not work is
reported as not run, with the reason, and never measured as something else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hoplite_ucx.bench.fabric.perftest import bandwidth, tool_on
from hoplite_ucx.bench.fabric.ways import Inventory, Way, advised, configuration, inventory, ways_between
from hoplite_ucx.bench.harness.live_cluster import LiveCluster
from hoplite_ucx.bench.hosts.line_process import LineProcess, PeerError
from hoplite_ucx.bench.hosts.places import Place
from hoplite_ucx.bench.measures.operations import check_cell, compare_on
from hoplite_ucx.bench.measures.over_ssh import measure_rate

__all__ = ["OPERATIONS", "measure_fabric"]

OPERATIONS = ("broadcast", "reduce", "allreduce")
_DOCTOR_SECONDS = 300.0
_ANSWER_SECONDS = 60.0


def measure_fabric(
    places: Sequence[Place],
    *,
    size: int,
    repeat: int,
    operations: Sequence[str] = OPERATIONS,
    devices: Sequence[Sequence[str]] = (),
    rate: float | None = None,
    memory: int = 2 << 30,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """`devices` are those to use, of each place; all that are active, if it is empty."""
    for operation in operations:
        check_cell(operation, len(places), size, memory=False)
    say("asking every machine what it has")
    wanted = devices or [()] * len(places)
    machines = [inventory(place.name, _doctor(place), of) for place, of in zip(places, wanted, strict=True)]
    ways, not_run = ways_between(machines)
    streams = measure_rate(places) if rate is None else rate
    figures: dict[str, dict[str, Any]] = {}
    for way in ways:
        say(f"measuring {way.name}")
        try:
            figures[way.name] = _measure(places, way, size, repeat, operations, streams, memory)
        except PeerError as error:
            not_run[way.name] = str(error)
    if not figures:
        raise PeerError("; ".join(f"{name}: {why}" for name, why in not_run.items()))
    medians = {
        name: {op: each["seconds"] for op, each in found["operations"].items()} for name, found in figures.items()
    }
    best = advised(ways, medians)
    return {
        "machines": [{"name": each.name, "ucx": each.ucx, "devices": each.devices} for each in machines],
        "size": size,
        "bare_stream_bytes_per_second": streams,
        "ways": figures,
        "perftest": _perftests(places, machines, say),
        "open_mpi": _open_mpi(places[0]),
        "not_run": not_run,
        "advised": best.name,
        "configuration": configuration(best, machines),
    }


def _measure(
    places: Sequence[Place],
    way: Way,
    size: int,
    repeat: int,
    operations: Sequence[str],
    rate: float,
    memory: int,
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with LiveCluster(places, rate, memory=memory, links=way.links) as live:
        for operation in operations:
            (measured,) = compare_on(
                places, {"": live}, operation, size=size, rate=rate, repeat=repeat, bare=False, settings={}
            )
            found[operation] = {
                "seconds": measured.seconds,
                "fastest": measured.fastest,
                "slowest": measured.slowest,
                "times_limit": measured.ratio,
            }
        lanes = sorted({lane for place in places for lane in _lanes(place)})
    return {"rails": way.rails, "lanes": lanes, "operations": found}


def _doctor(place: Place) -> dict[str, Any]:
    return _asked(place, "doctor", _DOCTOR_SECONDS)


def _lanes(place: Place) -> set[str]:
    """What UCX says its links there run over."""
    agents = _asked(place, "links", _ANSWER_SECONDS)["agents"]
    return {lane for agent in agents for link in agent["links"] for lane in link.get("lanes", [])}


def _asked(place: Place, command: str, seconds: float) -> dict[str, Any]:
    """What a command of ours prints there, as JSON. A configuration that does not work there is told by others."""
    process = LineProcess(
        place, [*place.module("hoplite_ucx"), command, "--json"], f"hoplite {command} on {place.name}"
    )
    try:
        answer = json.loads(process.line(time.monotonic() + seconds))
    except ValueError as error:
        raise PeerError(f"{process.name} printed no JSON: {error}") from error
    finally:
        process.close()
    if not isinstance(answer, dict):
        raise PeerError(f"{process.name} printed no object")
    return answer


def _perftests(places: Sequence[Place], machines: Sequence[Inventory], say: Callable[[str], None]) -> dict[str, Any]:
    """Of each rail between the first two machines: bytes per second, or why there is no figure."""
    if not all(each.devices for each in machines[:2]):
        return {"not_run": "the first two machines have no RDMA"}
    found: dict[str, Any] = {}
    for rail in zip(machines[0].devices, machines[1].devices, strict=False):
        say(f"measuring {' with '.join(rail)} with perftest")
        figure = bandwidth(places[0], places[1], rail)
        found[" ".join(rail)] = {"bytes_per_second": figure} if isinstance(figure, float) else {"not_run": figure}
    return found


def _open_mpi(place: Place) -> Mapping[str, str]:
    if not tool_on(place, "mpirun"):
        return {"not_run": f"Open MPI is not installed on {place.name}"}
    return {"not_run": "it is installed, and not measured by this command: see `hoplite bench peers`"}
