"""What chaos does to a cluster, as data: what a run begins with, and every action of its users and faults.

A `Recording` holds both, with the time and target of each action, and nothing of how they were chosen. So it replays
the same run after the generator has changed. Files have one JSON value per line: the setup, then the actions.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from hoplite_ucx.protocol import Settings
from hoplite_ucx.simulate.cluster import Shape

__all__ = [
    "Action",
    "Ask",
    "BreakStream",
    "Cancel",
    "CrashDirectory",
    "Cut",
    "Delete",
    "Get",
    "Heal",
    "Isolate",
    "Kill",
    "LoseDirectory",
    "LosePeer",
    "Poll",
    "PowerOff",
    "Put",
    "RaiseInDirectory",
    "RaiseInNode",
    "Recording",
    "RecordingError",
    "Reduce",
    "Restart",
    "RestartDirectory",
    "Restore",
    "Resume",
    "Retire",
    "Setup",
    "StallStream",
    "Stop",
    "Target",
    "Unpin",
    "Wait",
]

_FORMAT = 1


class RecordingError(ValueError):
    """A file that is not a recording, or not one that this version can play."""


class Target(Struct, frozen=True):
    """What a reduction is made of."""

    sources: tuple[int, ...]
    count: int
    everywhere: bool = False


class Setup(Struct, frozen=True, kw_only=True):
    """What a run begins with. Refs are numbers: the n-th is the n-th that the cluster gives out."""

    shape: Shape
    settings: dict[str, int | float]
    seed: int
    """Of the network's jitter, of how long streams take to close, and of who helps in the calm."""
    latencies: tuple[tuple[int, int, float], ...]
    """Links that differ: from, to, seconds."""
    sizes: dict[int, int]
    targets: dict[int, Target]
    fair_weather: bool
    """Nothing is broken, so that no stream may be given up and nothing lost."""

    def protocol_settings(self) -> Settings:
        unknown = set(self.settings) - set(Settings.__struct_fields__)
        if unknown:
            raise RecordingError(f"there is no setting {', '.join(sorted(unknown))} any more: record the run again")
        return msgspec.structs.replace(Settings(slot_cost=0.0), **self.settings)


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()


class _Action(Struct, frozen=True, tag_field="do", tag=_tag):
    def __str__(self) -> str:
        fields = msgspec.structs.asdict(self)
        fields.pop("node", None)
        values = (f"{value:08x}" if name in ("ref", "target") else str(value) for name, value in fields.items())
        return " ".join([str(self.__struct_config__.tag), *values])


# --- users: `node` is the number of the host at which they are, `call` that of one of their calls --------------------


class Put(_Action, frozen=True):
    node: int
    ref: int
    size: int


class Get(_Action, frozen=True):
    node: int
    ref: int


class Reduce(_Action, frozen=True):
    node: int
    target: int


class Ask(_Action, frozen=True):
    """Ask for the contributors."""

    node: int
    target: int


class Wait(_Action, frozen=True):
    node: int
    refs: tuple[int, ...]
    count: int
    timeout: float | None


class Poll(_Action, frozen=True):
    """Ask once which of these are ready, and get the first of them if it is."""

    node: int
    refs: tuple[int, ...]


class Delete(_Action, frozen=True):
    node: int
    ref: int


class Unpin(_Action, frozen=True):
    call: int


class Cancel(_Action, frozen=True):
    """A user's process dies: its calls are cancelled, its puts cut off."""

    call: int


# --- faults ----------------------------------------------------------------------------------------------------------


class Kill(_Action, frozen=True):
    node: int


class PowerOff(_Action, frozen=True):
    """The host is gone and says nothing: no reset, no refusal."""

    node: int


class Retire(_Action, frozen=True):
    """The node is to leave on purpose, when nothing is lost with it."""

    node: int


class Restart(_Action, frozen=True):
    node: int


class Stop(_Action, frozen=True):
    node: int


class Resume(_Action, frozen=True):
    node: int


class Cut(_Action, frozen=True):
    """One way, until it is healed."""

    source: str
    target_host: str


class Heal(_Action, frozen=True):
    source: str
    target_host: str


class Isolate(_Action, frozen=True):
    host: str


class Restore(_Action, frozen=True):
    host: str


class LoseDirectory(_Action, frozen=True):
    """The session with it."""

    node: int


class LosePeer(_Action, frozen=True):
    """The session with a peer, which is named by its identity: the sequence number of its process."""

    node: int
    peer: int


class BreakStream(_Action, frozen=True):
    """Of those that the node sends to a host, the `nth`."""

    node: int
    receiver: str
    nth: int


class StallStream(_Action, frozen=True):
    """A connection that neither moves nor breaks, while its sender is alive and says so."""

    node: int
    receiver: str
    nth: int


class CrashDirectory(_Action, frozen=True):
    pass


class RestartDirectory(_Action, frozen=True):
    pass


class RaiseInNode(_Action, frozen=True):
    """The node's machine raises when it has gone through so many lines more, of heartbeats or else without them."""

    node: int
    lines: int
    beats: bool


class RaiseInDirectory(_Action, frozen=True):
    lines: int
    beats: bool


Action: TypeAlias = (
    Put
    | Get
    | Reduce
    | Ask
    | Wait
    | Poll
    | Delete
    | Unpin
    | Cancel
    | Kill
    | PowerOff
    | Retire
    | Restart
    | Stop
    | Resume
    | Cut
    | Heal
    | Isolate
    | Restore
    | LoseDirectory
    | LosePeer
    | BreakStream
    | StallStream
    | CrashDirectory
    | RestartDirectory
    | RaiseInNode
    | RaiseInDirectory
)


class _Head(Struct, frozen=True, kw_only=True):
    format: int
    seed: int
    problem: str | None
    setup: Setup


class Recording(Struct, frozen=True, kw_only=True):
    seed: int
    """From which the run was drawn; it tells where it came from, and plays no part."""
    problem: str | None
    """What went wrong when it was recorded."""
    setup: Setup
    steps: tuple[tuple[float, Action], ...]

    def write(self, path: Path) -> None:
        head = _Head(format=_FORMAT, seed=self.seed, problem=self.problem, setup=self.setup)
        lines = [msgspec.json.encode(line) for line in (head, *self.steps)]
        path.write_bytes(b"\n".join(lines) + b"\n")

    @staticmethod
    def read(path: Path) -> Recording:
        try:
            first, *others = path.read_bytes().splitlines()
            head = msgspec.json.decode(first, type=_Head)
            steps = msgspec.json.Decoder(tuple[float, Action])
            recording = Recording(
                seed=head.seed,
                problem=head.problem,
                setup=head.setup,
                steps=tuple(steps.decode(line) for line in others),
            )
        except OSError as error:
            raise RecordingError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:  # also msgspec's, and a file without a line
            raise RecordingError(f"{path} is not a recording of chaos: {error}") from error
        if head.format != _FORMAT:
            raise RecordingError(f"{path} has format {head.format}, and this version reads {_FORMAT}")
        return recording
