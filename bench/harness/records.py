"""Figures that were written as JSON lines, read again: to compare two runs, and to draw them.

Lines without a timed figure, such as what was not run, are skipped; a file without any figure is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hoplite_ucx.bench.harness.timing import Measurement
from hoplite_ucx.bench.hosts.line_process import PeerError

__all__ = ["BARE", "US", "Change", "Figure", "Key", "changes", "failure_in", "figure_in", "figure_of", "read_figures"]

US = "hoplite"
BARE = "bare sockets"

Key = tuple[str, str, int, int, float]
"""What a figure is of: the operation, who did it, hosts, size and rate."""


@dataclass(frozen=True)
class Figure:
    """One line of a table: who did what, and how long it took."""

    subject: str
    operation: str
    hosts: int
    size: int
    rate: float
    seconds: float
    fastest: float
    slowest: float
    limit: float | None

    @property
    def key(self) -> Key:
        return self.operation, self.subject, self.hosts, self.size, self.rate

    @property
    def ratio(self) -> float | None:
        return None if self.limit is None else self.seconds / self.limit


def figure_of(measured: Measurement) -> Figure | None:
    return figure_in(json.loads(measured.json_line()))


def read_figures(path: Path) -> list[Figure]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PeerError(f"{path} cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            told = json.loads(line) if line.strip() else {}
            figure = figure_in(told) if isinstance(told, dict) else None
        except (ValueError, TypeError) as error:
            raise PeerError(f"line {number} of {path} is not a figure: {error}") from error
        if figure is not None:
            found.append(figure)
    if not found:
        raise PeerError(f"{path} contains no figures of operations; --json prints them")
    return found


def figure_in(told: dict[str, object]) -> Figure | None:
    """The figure of one JSON object; None if it holds none."""
    wanted = ("what", "operation", "hosts", "size", "rate", "seconds", "fastest_seconds", "slowest_seconds")
    if any(told.get(name) is None for name in wanted):
        return None
    what, operation, hosts, size, rate, seconds, fastest, slowest = (told[name] for name in wanted)
    limit = told.get("limit_seconds")
    return Figure(
        _subject(str(what), str(operation)),
        str(operation),
        int(str(hosts)),
        int(str(size)),
        float(str(rate)),
        float(str(seconds)),
        float(str(fastest)),
        float(str(slowest)),
        None if limit is None else float(str(limit)),
    )


def failure_in(told: dict[str, object]) -> tuple[Key, str] | None:
    """The cell that failed according to one JSON object, and why; None if it is not about a failure."""
    wanted = ("what", "operation", "hosts", "size", "rate", "not_run")
    if any(told.get(name) is None for name in wanted):
        return None
    what, operation, hosts, size, rate, why = (str(told[name]) for name in wanted)
    return (operation, _subject(what, operation), int(hosts), int(size), float(rate)), why


def _subject(what: str, operation: str) -> str:
    if what == operation or what.startswith(f"{operation} over "):
        return f"{US}{what.removeprefix(operation)}"
    return BARE if what.startswith("bare ") else what.removesuffix(operation).strip()


# --- two runs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    before: Figure
    after: Figure

    @property
    def ratio(self) -> float:
        return self.after.seconds / self.before.seconds

    @property
    def beyond_spread(self) -> bool:
        """Whether no round of one lies among the rounds of the other."""
        return self.after.fastest > self.before.slowest or self.after.slowest < self.before.fastest


def changes(before: Iterable[Figure], after: Iterable[Figure]) -> Iterator[Change]:
    """What both runs have, in the order of the first; of several figures for one key, the last counts."""
    later = {figure.key: figure for figure in after}
    for figure in {figure.key: figure for figure in before}.values():
        if figure.key in later:
            yield Change(figure, later[figure.key])
