"""What `bench dask` and `bench ray` share: how they show gains and faults, and what counts as growth."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.table import Table

from hoplite_ucx.bench.harness.timing import Measurement
from hoplite_ucx.cli.quantities import format_duration

__all__ = ["OURS", "Operation", "gains", "growth", "show_faults"]

OURS = "hoplite"
_GROWTH = 1.5
_SLACK = {"descriptors": 16, "threads": 8, "memory": 64 << 20}


class Operation(StrEnum):
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALLREDUCE = "allreduce"


def gains(measured: list[Measurement]) -> list[str]:
    ours = next(each for each in measured if each.what == OURS)
    others = [each for each in measured if each is not ours]
    return [f"hoplite is {each.seconds / ours.seconds:.2f} × as fast as {each.what}" for each in others]


def show_faults(outcomes: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("killed", "result", "after the fault"):
        table.add_column(column, justify="right" if column == "after the fault" else "left")
    for each in outcomes:
        result = each.get("result", "right") if each["right"] else each.get("why", "wrong").splitlines()[-1]
        table.add_row(each["case"], result, format_duration(each["seconds"], 3) if "seconds" in each else "-")
    Console(highlight=False).print(table)


def growth(early: dict[str, Any], late: dict[str, Any], nothing: Sequence[str]) -> list[str]:
    """What grew between a look after a tenth of the rounds and the last one, beyond the noise; and of what there must
    be nothing left, what is."""
    grown = [name for name in nothing if late[name] > 0]
    for name in ("descriptors", "memory"):
        for part, amount in late[name].items():
            if amount > _GROWTH * early[name][part] + _SLACK[name]:
                grown.append(f"{name} of {part}")
    if late["threads"] > _GROWTH * early["threads"] + _SLACK["threads"]:
        grown.append("threads")
    return grown
