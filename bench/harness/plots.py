"""Plots of figures: a panel for every operation and number of hosts, seconds over size, a line for every system.

matplotlib is loaded only here, and only when something is drawn.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hoplite_ucx.bench.harness.records import Figure
from hoplite_ucx.bench.hosts.line_process import PeerError

__all__ = ["draw", "load_pyplot", "name_size", "save"]

_COLUMNS = 3
_UNITS = ("B", "KiB", "MiB", "GiB")


def load_pyplot() -> Any:
    """matplotlib, or an error that it is missing."""
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise PeerError(f"plots need matplotlib ({error}): pip install 'hoplite-ucx[bench]'") from error


def draw(figures: Sequence[Figure], title: str) -> Any:
    """A matplotlib figure; the caller closes it."""
    pyplot = load_pyplot()
    panels = list(dict.fromkeys((figure.operation, figure.hosts) for figure in figures))
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    picture, axes = pyplot.subplots(
        rows, columns, figsize=(4.6 * columns, 3.8 * rows), squeeze=False, layout="constrained"
    )
    subjects = list(dict.fromkeys(figure.subject for figure in figures))
    for axis, panel in zip(axes.flat, panels, strict=False):
        _draw_panel(axis, [each for each in figures if (each.operation, each.hosts) == panel], subjects)
        axis.set_title(f"{panel[0]}, {panel[1]} hosts")
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    picture.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    picture.suptitle(title)
    return picture


def save(picture: Any, path: Path) -> list[Path]:
    """As PNG and as SVG, beside each other; returns where."""
    made = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    try:
        for each in made:
            picture.savefig(each, dpi=120)
    except OSError as error:
        raise PeerError(f"the picture cannot be written: {error}") from error
    finally:
        importlib.import_module("matplotlib.pyplot").close(picture)
    return made


def _draw_panel(axis: Any, figures: Sequence[Figure], subjects: Sequence[str]) -> None:
    for place, subject in enumerate(subjects):
        own = sorted((each for each in figures if each.subject == subject), key=lambda each: each.size)
        if own:
            middle = [each.seconds for each in own]
            spread = [
                [each.seconds - each.fastest for each in own],
                [each.slowest - each.seconds for each in own],
            ]
            axis.errorbar(
                [each.size for each in own], middle, yerr=spread, label=subject, color=f"C{place}", marker="o",
                markersize=4, capsize=2, linewidth=2.2 if subject == "hoplite" else 1.2,
            )  # fmt: skip
    limits = sorted({(each.size, each.limit) for each in figures if each.limit is not None})
    if limits:
        axis.plot(*zip(*limits, strict=True), color="black", linestyle=":", linewidth=1, label="limit of the links")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    sizes = sorted({each.size for each in figures})
    axis.set_xticks(sizes, [name_size(size) for size in sizes])
    axis.minorticks_off()
    axis.set_xlabel("size of each object")
    axis.set_ylabel("seconds")
    axis.grid(alpha=0.3)


def name_size(size: int) -> str:
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size // 1024, unit + 1
    return f"{size} {_UNITS[unit]}"
