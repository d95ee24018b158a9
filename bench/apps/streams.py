"""What a trace says of a run: for how long bytes were on their way, and for how long nothing was sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hoplite_ucx.bench.hosts.line_process import PeerError

__all__ = ["Streams", "read_streams", "streams_of"]

_RECEIVING = "receiving"


@dataclass(frozen=True)
class Streams:
    """In seconds, from the first stream to the end of the last."""

    whole: float
    sending: float
    """In which at least one host received."""
    busiest: float
    """The longest that one host received."""

    @property
    def silent(self) -> float:
        return self.whole - self.sending


def read_streams(path: Path) -> Streams:
    try:
        return streams_of(msgspec.json.decode(path.read_bytes())["traceEvents"])
    except (OSError, msgspec.DecodeError, KeyError) as error:
        raise PeerError(f"the trace {path} cannot be read: {error}") from error


def streams_of(events: Iterable[dict[str, Any]]) -> Streams:
    hosts: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == _RECEIVING and event["ph"] == "X":
            began = 1e-6 * event["ts"]
            hosts[event["pid"]].append((began, began + 1e-6 * event["dur"]))
    spans = [span for found in hosts.values() for span in found]
    if not spans:
        return Streams(0.0, 0.0, 0.0)
    whole = max(end for _, end in spans) - min(begin for begin, _ in spans)
    return Streams(whole, _covered(spans), max(_covered(found) for found in hosts.values()))


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
