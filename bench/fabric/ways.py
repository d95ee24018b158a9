"""The ways in which machines of a list can be linked, which of them is the best, and the configuration for it.

It only decides. A way is TCP, UCX over its own TCP, or RDMA with a number of rails, if every machine has it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Inventory", "Way", "advised", "configuration", "inventory", "ways_between"]

_GAIN = 1.05
"""A way with more to configure is advised only if it is so many times as fast."""


@dataclass(frozen=True)
class Inventory:
    """What a machine has for links, as its `hoplite doctor` says."""

    name: str
    ucx: bool
    devices: tuple[str, ...] = ()
    """RDMA ports that are active and that its UCX can use, in UCX's words."""
    without_rdma: str = ""
    """Why there are none."""


@dataclass(frozen=True)
class Way:
    """`links` are the variables of each machine's agent."""

    name: str
    links: tuple[Mapping[str, str], ...]
    rails: int = 0


def inventory(name: str, report: Mapping[str, Any], wanted: Sequence[str] = ()) -> Inventory:
    """From what `hoplite doctor --json` printed there. With `wanted`, only those devices count, in that order."""
    usable = {lane.partition("/")[2] for lane in report["ucx"]["devices"]}
    found = [
        f"{device['name']}:{port['number']}"
        for device in report["devices"]
        for port in device["ports"]
        if port["state"] == "ACTIVE" and f"{device['name']}:{port['number']}" in usable
    ]
    devices = [device for device in wanted if device in found] if wanted else found
    problems = [each["problem"] for each in report["problems"]]
    why = "" if report["rdma"] and devices else "; ".join(problems) or "it has no RDMA device"
    return Inventory(name, not report["ucx"]["failure"], () if why else tuple(devices), why)


def ways_between(machines: Sequence[Inventory]) -> tuple[list[Way], dict[str, str]]:
    """Those that all machines have, the simplest first; and why others are not among them."""
    ways = [Way("tcp", tuple({"HOPLITE_LINKS_TRANSPORT": "tcp"} for _ in machines))]
    missing: dict[str, str] = {}
    if (without := next((each for each in machines if not each.ucx), None)) is not None:
        missing |= dict.fromkeys(("ucx over tcp", "rdma"), f"{without.name} has no UCX")
        return ways, missing
    over_tcp = {"HOPLITE_LINKS_REQUIRE": "ucx", "HOPLITE_UCX_TLS": "tcp"}
    ways.append(Way("ucx over tcp", tuple(over_tcp for _ in machines)))
    if (without := next((each for each in machines if not each.devices), None)) is not None:
        missing["rdma"] = f"{without.name}: {without.without_rdma}"
    for rails in range(1, min(len(each.devices) for each in machines) + 1):
        links = tuple(
            {"HOPLITE_LINKS_REQUIRE": "rdma", "HOPLITE_UCX_NET_DEVICES": ",".join(each.devices[:rails])}
            for each in machines
        )
        ways.append(Way(f"rdma, {rails} rail{'s' * (rails > 1)}", links, rails))
    return ways, missing


def advised(ways: Sequence[Way], seconds: Mapping[str, Mapping[str, float]]) -> Way:
    """The way whose operations were the fastest, by their geometric mean. `seconds` has, for the ways that were
    measured, each operation's median. Ways come with the simplest first, and a later one must be clearly faster."""
    measured = [way for way in ways if way.name in seconds]
    best = measured[0]
    for way in measured[1:]:
        ratios = [seconds[best.name][operation] / took for operation, took in seconds[way.name].items()]
        if math.prod(ratios) ** (1 / len(ratios)) >= _GAIN:
            best = way
    return best


def configuration(way: Way, machines: Sequence[Inventory]) -> str:
    """What to write to the file that HOPLITE_CONFIG names; a part for each group of machines whose devices differ."""
    if not way.rails:
        return _TCP if way.name == "tcp" else _UCX_TCP
    groups: dict[tuple[str, ...], list[str]] = {}
    for each in machines:
        groups.setdefault(each.devices[: way.rails], []).append(each.name)
    parts = []
    for devices, names in groups.items():
        where = "" if len(groups) == 1 else f"# on {', '.join(names)}\n"
        parts.append(f'{where}[links]\ntransport = "rdma"\n\n[ucx]\nnet_devices = {json.dumps(list(devices))}\n')
    return "\n".join(parts)


_TCP = '[links]\ntransport = "tcp"\n'
_UCX_TCP = '[links]\ntransport = "ucx"\n\n[ucx]\ntls = ["tcp"]\n'
