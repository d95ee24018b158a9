"""One picture for each of the paper's figures, from whatever records there are.

Every system has one colour in all of them. What was not measured leaves no mark; a figure without any record at all is
not drawn. Bars and error bars span the fastest and the slowest round, marks are medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hoplite_ucx.bench.harness.journal import Record
from hoplite_ucx.bench.harness.plots import load_pyplot, name_size
from hoplite_ucx.bench.harness.records import BARE, Figure, figure_in
from hoplite_ucx.bench.paper.plan import OPERATIONS, OURS, SMALL, STAGGERED, Kind
from hoplite_ucx.bench.peers.launching import PEERS

__all__ = ["PICTURES", "Point", "points_of"]

SUBJECTS = [OURS, BARE, *(peer.title for peer in PEERS.values())]
_COLOURS = dict(
    zip(SUBJECTS, ("#c1121f", "#555555", "#1f77b4", "#17becf", "#2ca02c", "#ff7f0e", "#9467bd"), strict=True)
)
_MARKS = dict(zip(SUBJECTS, "ox^v<s>", strict=False))


@dataclass(frozen=True)
class Point:
    """A figure, and where it lies on the axes that other commands have not."""

    kind: str
    figure: Figure
    spacing: float
    degree: int

    @property
    def subject(self) -> str:
        return self.figure.subject

    @property
    def errors(self) -> tuple[float, float]:
        return self.figure.seconds - self.figure.fastest, self.figure.slowest - self.figure.seconds


def points_of(records: Iterable[Record]) -> list[Point]:
    """Those of the records that are timed operations; the others are laps, or were not run."""
    found = []
    for record in records:
        figure = figure_in(record)
        if figure is not None:
            found.append(
                Point(str(record.get("kind")), figure, float(record.get("spacing", 0.0)), int(record.get("degree", 0)))
            )
    return found


# --- Figure 6 ---------------------------------------------------------------------------------------------------


def _round_trips(records: Sequence[Record]) -> Any:
    points = [point for point in _of_kind(records, Kind.SWEEP) if point.figure.operation == "rtt"]
    if not points:
        return None
    sizes = sorted({point.figure.size for point in points})
    subjects = _subjects(points)
    picture, axes = _panels(1, len(sizes), width=1.2 + 0.45 * len(subjects), height=3.4)
    for axis, size in zip(axes.flat, sizes, strict=True):
        bars = {point.subject: point for point in points if point.figure.size == size}
        for place, subject in enumerate(subjects):
            if subject in bars:
                seconds, top = bars[subject].figure.seconds, bars[subject].figure.slowest
                error = [[each] for each in bars[subject].errors]
                axis.bar(place, seconds, yerr=error, color=_COLOURS[subject], capsize=3, width=0.7)
                axis.annotate(_short(seconds), (place, top), ha="center", va="bottom", fontsize=7)
        axis.set_xticks(range(len(subjects)), subjects, rotation=40, ha="right", fontsize=8)
        if size <= SMALL:
            axis.set_yscale("log")  # a bare socket is hundreds of times faster than some
        axis.margins(y=0.1)
        axis.set_title(name_size(size))
        axis.grid(axis="y", alpha=0.3)
    axes.flat[0].set_ylabel("round trip, seconds")
    return picture


# --- Figures 7 and 13 -------------------------------------------------------------------------------------------


def _large(records: Sequence[Record]) -> Any:
    return _sweep([point for point in _operations(records) if point.figure.size > SMALL])


def _small(records: Sequence[Record]) -> Any:
    return _sweep([point for point in _operations(records) if point.figure.size <= SMALL])


def _sweep(points: Sequence[Point]) -> Any:
    """A row for every size, a column for every operation, seconds over hosts."""
    if not points:
        return None
    sizes = sorted({point.figure.size for point in points})
    operations = [name for name in OPERATIONS if any(point.figure.operation == name for point in points)]
    picture, axes = _panels(len(sizes), len(operations))
    for row, size in enumerate(sizes):
        for column, operation in enumerate(operations):
            axis = axes[row][column]
            here = [each for each in points if (each.figure.size, each.figure.operation) == (size, operation)]
            _lines(axis, here, lambda point: point.figure.hosts)
            limits = {each.figure.hosts: each.figure.limit for each in here if each.figure.limit is not None}
            if limits and size > SMALL:
                _line_of_limits(axis, sorted(limits.items()))
            axis.set_title(f"{operation} {name_size(size)}", fontsize=10)
            axis.set_xticks(sorted({point.figure.hosts for point in points}))
            axis.set_ylim(bottom=0)
            if row == len(sizes) - 1:
                axis.set_xlabel("hosts")
        axes[row][0].set_ylabel("seconds")
    _legend(picture, axes)
    return picture


# --- Figure 8 ---------------------------------------------------------------------------------------------------


def _staggered(records: Sequence[Record]) -> Any:
    points = _of_kind(records, Kind.STAGGERED)
    if not points:
        return None
    operations = [name for name in STAGGERED if any(point.figure.operation == name for point in points)]
    picture, axes = _panels(1, len(operations), height=3.4)
    for axis, operation in zip(axes.flat, operations, strict=True):
        here = [point for point in points if point.figure.operation == operation]
        _lines(axis, here, lambda point: point.spacing)
        spacings = sorted({point.spacing for point in here})
        last = [spacing * (here[0].figure.hosts - 1) for spacing in spacings]
        axis.plot(spacings, last, color="black", linestyle="--", linewidth=1, label="the last one comes")
        axis.set_title(f"{operation} {name_size(here[0].figure.size)}, {here[0].figure.hosts} hosts", fontsize=10)
        axis.set_xlabel("seconds between arrivals")
        axis.set_ylim(bottom=0)
    axes.flat[0].set_ylabel("seconds from the first arrival")
    _legend(picture, axes)
    return picture


# --- Figure 12 --------------------------------------------------------------------------------------------------


def _failures(records: Sequence[Record]) -> Any:
    laps = {kind: [each for each in records if each.get("kind") == kind and "began" in each] for kind in _LOOPS}
    shown = [kind for kind in _LOOPS if laps[kind]]
    if not shown:
        return None
    picture, axes = _panels(1, len(shown), width=6.0, height=3.4)
    for axis, kind in zip(axes.flat, shown, strict=True):
        _draw_laps(axis, laps[kind])
        axis.set_title(f"{_LOOPS[kind]}, {laps[kind][0]['hosts'] - 1} workers", fontsize=10)
    axes.flat[0].set_ylabel("latency of a round, seconds")
    _legend(picture, axes)
    return picture


_LOOPS: dict[str, str] = {Kind.SERVING: "(a) ensemble serving", Kind.TRAINING: "(b) asynchronous SGD"}


def _draw_laps(axis: Any, laps: Sequence[Record]) -> None:
    axis.plot(
        [lap["began"] for lap in laps],
        [lap["seconds"] for lap in laps],
        marker="o",
        markersize=3,
        linewidth=0.8,
        color=_COLOURS[OURS],
        label=OURS,
    )
    moments = {lap["event"]: lap["began"] for lap in laps if lap["event"]}
    for event, style in (("failed", "-"), ("rejoined", ":")):
        if event in moments:
            label = "a worker is killed" if event == "failed" else "it is back"
            axis.axvline(moments[event], color="black", linestyle=style, linewidth=1, label=label)
    before = [lap["seconds"] for lap in laps if lap["began"] < moments.get("failed", float("inf"))]
    if before:
        axis.axhline(statistics.median(before), color="grey", linewidth=0.7, label="median before")
    axis.set_xlabel("seconds since the first round")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)


# --- the degree of reduce trees ---------------------------------------------------------------------------------


def _degrees(records: Sequence[Record]) -> Any:
    points = _of_kind(records, Kind.DEGREES)
    if not points:
        return None
    sizes = sorted({point.figure.size for point in points})
    hosts = points[0].figure.hosts
    names = {1: "1 (chain)", 2: "2", hosts: f"{hosts} (star)", 0: "as chosen"}
    picture, axes = _panels(1, len(sizes), width=2.6, height=3.2)
    for axis, size in zip(axes.flat, sizes, strict=True):
        bars = {point.degree: point for point in points if point.figure.size == size}
        for place, degree in enumerate(names):
            if degree in bars:
                error = [[each] for each in bars[degree].errors]
                colour = _COLOURS[OURS] if degree == 0 else "#aab7c4"
                axis.bar(place, bars[degree].figure.seconds, yerr=error, color=colour, capsize=3, width=0.7)
        axis.set_xticks(range(len(names)), names.values(), rotation=40, ha="right", fontsize=8)
        axis.set_title(f"reduce {name_size(size)}, {hosts} hosts", fontsize=9)
        axis.grid(axis="y", alpha=0.3)
    axes.flat[0].set_ylabel("seconds")
    return picture


PICTURES: dict[str, Callable[[Sequence[Record]], Any]] = {
    "6": _round_trips,
    "7": _large,
    "8": _staggered,
    "12": _failures,
    "13": _small,
    "degrees": _degrees,
}
"""By figure; each makes a matplotlib figure, or None if there is nothing to draw."""


# --- parts of pictures ------------------------------------------------------------------------------------------


def _of_kind(records: Sequence[Record], kind: Kind) -> list[Point]:
    return [point for point in points_of(records) if point.kind == kind]


def _operations(records: Sequence[Record]) -> list[Point]:
    return [point for point in _of_kind(records, Kind.SWEEP) if point.figure.operation in OPERATIONS]


def _subjects(points: Sequence[Point]) -> list[str]:
    there = {point.subject for point in points}
    return [subject for subject in SUBJECTS if subject in there]


def _panels(rows: int, columns: int, *, width: float = 3.1, height: float = 2.5) -> tuple[Any, Any]:
    picture, axes = load_pyplot().subplots(
        rows, columns, figsize=(width * columns, height * rows + 0.5), squeeze=False, layout="constrained"
    )
    return picture, axes


def _lines(axis: Any, points: Sequence[Point], place: Callable[[Point], float]) -> None:
    for subject in _subjects(points):
        own = sorted((point for point in points if point.subject == subject), key=place)
        axis.errorbar(
            [place(point) for point in own],
            [point.figure.seconds for point in own],
            yerr=list(zip(*(point.errors for point in own), strict=True)),
            label=subject,
            color=_COLOURS[subject],
            marker=_MARKS[subject],
            markersize=4,
            linewidth=2.0 if subject == OURS else 1.1,
            capsize=2,
        )
    axis.grid(alpha=0.3)


def _line_of_limits(axis: Any, limits: Sequence[tuple[int, float]]) -> None:
    axis.plot(*zip(*limits, strict=True), color="black", linestyle=":", linewidth=1, label="limit of the links")


def _legend(picture: Any, axes: Any) -> None:
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    picture.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, frameon=False, fontsize=9)


def _short(seconds: float) -> str:
    return (
        f"{seconds:.2g} s"
        if seconds >= 1
        else f"{seconds * 1e3:.2g} ms"
        if seconds < 0.1
        else f"{seconds * 1e3:.0f} ms"
    )
