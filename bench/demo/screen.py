"""How the demo looks: on a terminal a picture that moves, elsewhere a few lines as things happen.

A picture has the tree (an arrow points where the bytes go), a bar for every host, and what happened. It stays where it
is when its act is over, and the next one comes below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hoplite_ucx.bench.demo.acts import Act, Incident, Track

_BAR = 40
_MARKS = {"✗": "bold red", "↪": "cyan"}
_MOST_INCIDENTS = 8
Format = Callable[[float], str]


class Screen:
    """`duration` writes seconds for people. Quiet screens show nothing."""

    def __init__(self, console: Console, duration: Format, *, quiet: bool = False) -> None:
        self._console = console
        self._duration = duration
        self._quiet = quiet
        self._live: Live | None = None
        self._told = 0

    @contextmanager
    def act(self, number: int, title: str) -> Iterator[None]:
        """While one act is played."""
        self._told = 0
        if self._quiet:
            yield
            return
        self._console.print(Text.assemble((f"{number}  ", "dim"), (title, "bold")), soft_wrap=True)
        if not self._console.is_terminal:
            yield
            self._console.print()
            return
        # No drawing thread: the act says when there is something new.
        with Live(console=self._console, auto_refresh=False) as self._live:
            yield
        self._live = None

    def show(self, act: Act) -> None:
        if self._live is not None:
            self._live.update(picture(act, self._duration), refresh=True)
        elif not self._quiet:
            for incident in act.incidents[self._told :]:
                self._console.print(_incident(incident, self._duration), soft_wrap=True)
            self._told = len(act.incidents)

    def say(self, text: Text | str) -> None:
        if not self._quiet:
            self._console.print(text, soft_wrap=True)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """While something takes a moment."""
        if self._quiet or not self._console.is_terminal:
            yield
            return
        with self._console.status(text):
            yield


def picture(act: Act, duration: Format) -> RenderableType:
    parts: list[RenderableType] = [*tree_lines(act.edges, act.tracks), Text(), _bars(act, duration)]
    incidents = sorted(act.incidents, key=lambda incident: incident.at)
    if len(incidents) > _MOST_INCIDENTS:
        hidden = len(incidents) - _MOST_INCIDENTS
        incidents = incidents[:_MOST_INCIDENTS]
        parts += [Text(), *(_incident(each, duration) for each in incidents), Text(f"   and {hidden} more", "dim")]
    elif incidents:
        parts += [Text(), *(_incident(each, duration) for each in incidents)]
    parts.append(Text())
    return Group(*parts)


def _bars(act: Act, duration: Format) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    for track in act.tracks:
        style = "red" if track.dead else "green" if track.done_at is not None else "cyan"
        bar = ProgressBar(1.0, track.fraction, width=_BAR, complete_style=style, finished_style=style)
        table.add_row(f"   host {track.index}", _state(track), bar, _time_of(track, duration))
    return table


def _state(track: Track) -> Text:
    if track.dead:
        return Text("killed", "red")
    pulls = f"from {', '.join(map(str, track.senders))}" if track.senders else ""
    return Text("  ".join(filter(None, (track.role, pulls))) or "waits")


def _time_of(track: Track, duration: Format) -> Text:
    if track.done_at is not None:
        return Text(duration(track.done_at), "green")
    return Text(f"{track.fraction:4.0%}" if track.fraction else "", "dim")


def _incident(incident: Incident, duration: Format) -> Text:
    style = _MARKS.get(incident.mark, "dim")
    return Text.assemble("   ", (incident.mark, style), f" {duration(incident.at):>6}  {incident.text}")


# --- the tree --------------------------------------------------------------------------------------------------


def tree_lines(edges: list[tuple[int, int]], tracks: list[Track]) -> list[Text]:
    """Paths from where bytes come from to where they end; where paths meet, the later ones end at the meeting point.

    Always as many lines as there are paths, at least one, so that a picture of a chain does not jump.
    """
    dead = [track.index for track in tracks if track.dead]
    lines = [Text("   ").append_text(_path(path)) for path in paths(edges)] or [Text("   no bytes yet", "dim")]
    if dead:
        lines[0].append(f"      ✗ {', '.join(map(str, dead))}", "bold red")
    return lines


def _path(path: list[int]) -> Text:
    return Text(" ──▶ ", "dim").join([Text(str(host), "bold") for host in path])


def paths(edges: list[tuple[int, int]]) -> list[list[int]]:
    """Every edge once, in paths as long as possible, the longest first."""
    left: dict[int, list[int]] = {}
    for sender, receiver in sorted(set(edges)):
        left.setdefault(sender, []).append(receiver)
    found = []
    while any(left.values()):
        found.append(max((_longest(start, left) for start, ends in left.items() if ends), key=len))
        for sender, receiver in zip(found[-1], found[-1][1:], strict=False):
            left[sender].remove(receiver)
    return found


def _longest(start: int, left: Mapping[int, list[int]], seen: frozenset[int] = frozenset()) -> list[int]:
    """The trees of the demo are small and nearly chains. Counters of two hosts may be of different moments, so that
    edges may even seem to form a ring for a moment: a host appears twice in a path only at its very end."""
    seen |= {start}
    ways = [_longest(end, left, seen) if end not in seen else [end] for end in left.get(start, ())]
    return [start, *max(ways, key=len, default=[])]
