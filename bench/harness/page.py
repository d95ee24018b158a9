"""Recorded figures as a page of the manual, and as the table of the README.

A page has one table, of one machine and one commit: figures that were taken under different roofs are not compared.
Under the table is what others do faster, computed from the same figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hoplite_ucx.bench.harness.records import BARE, US, Figure, read_figures
from hoplite_ucx.bench.hosts.line_process import PeerError

__all__ = ["README_BEGIN", "README_END", "Recording", "page", "readme_table", "with_table"]

README_BEGIN = "<!-- figures: made by hoplite bench page -->"
README_END = "<!-- /figures -->"

_ORDER = ("broadcast", "reduce", "allreduce", "gather", "arrivals", "rtt")
_SAID = {"arrivals": "reduce, puts 0.1 s apart", "rtt": "put, get and back"}
_SHORT = [("broadcast", 32 << 20), ("reduce", 32 << 20), ("allreduce", 32 << 20), ("broadcast", 1 << 20)]
"""The rows of the README."""
_SETTLED = 1 << 20
"""Objects below this size fit into one bucket of the shaper: the limit of the links says nothing about them."""


_PAGE = """\
# Benchmarks

<!-- Made by `{command}`; a test compares the two. -->

hoplite-ucx beside other systems: {hosts} emulated hosts of {rate} Gbit/s, all on one machine ({processor}, {cores}
cores, {memory} GiB, Linux {kernel}, Python {python}), at commit {commit}, {date}. With {versions}.

Medians of the rounds; in brackets, the multiple of the time that the links alone would take. The fastest of each row is
bold; bare sockets, which know everything beforehand and survive nothing, do not count.

{table}

## Where we lose

{losses}

## How it was measured

[Measuring](measuring.md) has the rules, and the commands that made this page. Every round compares every value. Below
10 ms, the rounds of one cell differ by up to three times. Older runs: [history](history/benchmarks.md). What the
protocol does on a perfect network: [simulated figures](simulated.md).
"""


class Recording:
    """The figures of one file: one number of hosts, one rate, one machine, one commit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.figures = read_figures(path)
        self._rows = [
            row for line in path.read_text().splitlines() if line.strip() and "machine" in (row := json.loads(line))
        ]
        self.hosts = self._one("number of hosts", (figure.hosts for figure in self.figures))
        self.rate = self._one("rate", (figure.rate for figure in self.figures))
        self.commit = self._one("commit", (row["machine"].get("commit") for row in self._rows))
        names = ("processor", "cores", "memory", "kernel", "python")
        self.machine: dict[str, Any] = {
            name: self._one(name, (row["machine"].get(name) for row in self._rows)) for name in names
        }
        self.dates = sorted({str(row["machine"]["date"]) for row in self._rows if row["machine"].get("date")})
        self.versions: dict[str, str] = {}
        for row in self._rows:
            self.versions |= row.get("versions", {})

    def _one(self, what: str, values: Iterable[Any]) -> Any:
        found = list(dict.fromkeys(values))
        if len(found) > 1:
            shown = ", ".join(str(each) for each in found)
            raise PeerError(f"{self.path} has figures of more than one {what} ({shown}); record them in one run")
        return found[0] if found else None

    @property
    def subjects(self) -> list[str]:
        return list(dict.fromkeys([US, *(figure.subject for figure in self.figures)]))

    @property
    def cells(self) -> list[tuple[str, int]]:
        return sorted(
            {(each.operation, each.size) for each in self.figures}, key=lambda cell: (_place(cell[0]), cell[1])
        )

    def row(self, cell: tuple[str, int]) -> dict[str, Figure]:
        return {each.subject: each for each in self.figures if (each.operation, each.size) == cell}


def page(recording: Recording, command: str) -> str:
    """The page, in Markdown. `command` is what made it."""
    machine = recording.machine
    return _PAGE.format(
        command=command,
        hosts=recording.hosts,
        rate=f"{recording.rate * 8 / 1e9:g}",
        processor=machine["processor"] or "an unnamed processor",
        cores=machine["cores"],
        memory=round(machine["memory"] / 2**30),
        kernel=machine["kernel"],
        python=machine["python"],
        commit=recording.commit,
        date=" to ".join(dict.fromkeys([*recording.dates[:1], *recording.dates[-1:]])) or "on an unknown day",
        versions=", ".join(f"{name} {version}" for name, version in sorted(recording.versions.items()) if name != US),
        table=_table(recording, recording.cells),
        losses="\n".join(_losses(recording)) or "Nowhere in this run.",
    )


def readme_table(recording: Recording) -> str:
    """A few rows of it."""
    there = [cell for cell in _SHORT if US in recording.row(cell)]
    when = f", {recording.dates[-1]}" if recording.dates else ""
    title = (
        f"{recording.hosts} emulated hosts of {recording.rate * 8 / 1e9:g} Gbit/s on {recording.machine['cores']} cores"
    )
    return (
        f"{title}, commit {recording.commit}{when}; in brackets × the limit of the links:\n\n{_table(recording, there)}"
    )


def with_table(text: str, table: str) -> str:
    """A page with the table between its marks replaced."""
    if text.count(README_BEGIN) != 1 or text.count(README_END) != 1:
        raise PeerError(f"the page has no place for the table: it needs {README_BEGIN} and {README_END} once each")
    before, _, rest = text.partition(README_BEGIN)
    return f"{before}{README_BEGIN}\n{table}\n{README_END}{rest.partition(README_END)[2]}"


def _table(recording: Recording, cells: Sequence[tuple[str, int]]) -> str:
    subjects = recording.subjects
    lines = [f"| | {' | '.join(subjects)} |", "|---" * (len(subjects) + 1) + "|"]
    for cell in cells:
        row = recording.row(cell)
        best = min((each for each in row.values() if each.subject != BARE), key=lambda each: each.seconds)
        texts = [_cell(row.get(subject), bold=row.get(subject) is best) for subject in subjects]
        lines.append(f"| {_said(cell)} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _cell(figure: Figure | None, *, bold: bool) -> str:
    if figure is None:
        return ""
    time = f"**{_time(figure.seconds)}**" if bold else _time(figure.seconds)
    return f"{time} ({figure.ratio:.2f})" if figure.ratio is not None and figure.size >= _SETTLED else time


def _losses(recording: Recording) -> list[str]:
    """Cells in which a peer is faster, the worst first."""
    found = []
    for cell in recording.cells:
        row = recording.row(cell)
        peers = [each for each in row.values() if each.subject not in (US, BARE)]
        if US not in row or not peers:
            continue
        us, best = row[US], min(peers, key=lambda each: each.seconds)
        if best.seconds < us.seconds:
            apart = "" if best.slowest < us.fastest else "; some of our rounds were as fast as some of theirs"
            ratio = us.seconds / best.seconds
            theirs = f"{ratio:.2f} × the time of {best.subject} ({_time(best.seconds)})"
            found.append((ratio, f"- {_said(cell)}: {_time(us.seconds)}, {theirs}{apart}"))
    return [text for _, text in sorted(found, key=lambda each: -each[0])]


def _said(cell: tuple[str, int]) -> str:
    operation, size = cell
    large = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size >= 1 << 10 else f"{size} bytes"
    return f"{_SAID.get(operation, operation)}, {large}"


def _place(operation: str) -> int:
    return _ORDER.index(operation) if operation in _ORDER else len(_ORDER)


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
