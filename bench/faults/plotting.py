"""The picture of a campaign: how fast each fault was noticed, when bytes flowed again, and when all calls had ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hoplite_ucx.bench.faults.recording import Record, kind_of
from hoplite_ucx.bench.harness.plots import load_pyplot

__all__ = ["plot"]

_PANELS = {
    "noticed_seconds": "noticed",
    "next_byte_seconds": "next byte",
    "after_fault_seconds": "last call ended",
}
_SHORTEST = 1e-3


def plot(records: Sequence[Record], title: str, path: Path) -> list[Path]:
    """Draw it twice, as PNG and as SVG, beside each other; returns where."""
    pyplot = load_pyplot()
    kinds = sorted({kind_of(record) for record in records if "fault" in record})
    figure, axes = pyplot.subplots(1, len(_PANELS), figsize=(13, 1.2 + 0.32 * len(kinds)), sharey=True, sharex=True)
    for axis, (field, name) in zip(axes, _PANELS.items(), strict=True):
        for place, kind in enumerate(kinds):
            values = _values(records, kind, field)
            axis.plot(values, [place] * len(values), "|", color="C0", markersize=9, alpha=0.6)
            if values:
                axis.plot([sorted(values)[len(values) // 2]], [place], "o", color="C3", markersize=5)
        axis.set_xscale("log")
        axis.set_title(name)
        axis.set_xlabel("seconds after the fault")
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(kinds)), kinds)
    figure.suptitle(f"{title} (dots are medians)")
    figure.tight_layout()
    made = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    for each in made:
        figure.savefig(each, dpi=120)
    pyplot.close(figure)
    return made


def _values(records: Sequence[Record], kind: str, field: str) -> list[float]:
    values: list[float] = []
    for record in records:
        value = record.get(field)
        if kind_of(record) == kind and value is not None:
            values += value if isinstance(value, list) else [value]
    return [max(_SHORTEST, value) for value in values if value >= 0]
