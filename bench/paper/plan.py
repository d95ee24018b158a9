"""What is measured for which figure: grids, and the parts that they are taken in.

A part is one system on one emulated cluster: it is run as a whole, and again as a whole if it was interrupted. Ours
come first, for all figures, so that a run which is ended early has them; then the peers. How long
a part takes is guessed here, for the progress bar and to end in time.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hoplite_ucx.bench.harness.records import US
from hoplite_ucx.bench.harness.timing import limit_seconds
from hoplite_ucx.bench.peers.launching import PEERS
from hoplite_ucx.bench.peers.rounds import Cell, calls_of

__all__ = ["DEFAULT", "OURS", "QUICK", "SMALL", "Grid", "Kind", "Part", "parts"]

KIB, MIB, GBIT = 1 << 10, 1 << 20, 125e6

OURS = US
SMALL = 32 * KIB
"""Objects up to here are the subject of Figure 13, larger ones that of Figure 7."""

OPERATIONS = ("broadcast", "gather", "reduce", "allreduce")
STAGGERED = ("broadcast", "reduce", "allreduce")
ONE_PROGRAM_PER_HOST = ("openmpi", "openmpi-pipelined", "gloo")
"""Peers that can be written so that their hosts come one by one."""
ALIKE = ("openmpi-pipelined",)
"""Where two hosts are concerned, these do what another peer does."""


class Kind(enum.StrEnum):
    SWEEP = "operations"
    """Figures 6, 7 and 13."""
    STAGGERED = "staggered arrivals"
    """Figure 8."""
    SERVING = "serving"
    """Figure 12a."""
    TRAINING = "training"
    """Figure 12b."""
    DEGREES = "degrees"
    """The ablation of the reduce tree's degree."""


@dataclass(frozen=True)
class Grid:
    name: str
    minutes: float
    """Nothing is begun that would not be done by then."""
    rate: float
    repeat: int
    trips: tuple[int, ...]
    """Sizes of round trips, which are between two of the fewest hosts."""
    hosts: tuple[int, ...]
    sizes: tuple[int, ...]
    peer_hosts: tuple[int, ...]
    """With how many hosts the peers are measured."""
    bare: bool
    """Whether bare sockets run beside us; in round trips they always do."""
    spacings: tuple[float, ...]
    staggered_hosts: int
    staggered_size: int
    degree_hosts: int
    degree_sizes: tuple[int, ...]
    workers: int
    """Of the applications that lose one."""
    queries: int
    """How many rounds these have before the failure, and after the return."""
    query_size: int
    gradient_size: int


DEFAULT = Grid(
    name="default", minutes=38, rate=GBIT / 2, repeat=2,
    trips=(KIB, MIB, 64 * MIB),
    hosts=(4, 8, 16), sizes=(KIB, 32 * KIB, MIB, 32 * MIB), peer_hosts=(4, 8), bare=True,
    spacings=(0.0, 0.05, 0.1, 0.2), staggered_hosts=8, staggered_size=32 * MIB,
    degree_hosts=16, degree_sizes=(128 * KIB, MIB, 8 * MIB, 32 * MIB),
    workers=8, queries=40, query_size=16 * MIB, gradient_size=16 * MIB,
)  # fmt: skip

QUICK = Grid(
    name="quick", minutes=5.7, rate=GBIT, repeat=2,
    trips=(KIB, MIB, 8 * MIB),
    hosts=(4, 8), sizes=(KIB, 32 * KIB, MIB, 8 * MIB), peer_hosts=(4,), bare=False,
    spacings=(0.0, 0.05, 0.1), staggered_hosts=4, staggered_size=8 * MIB,
    degree_hosts=4, degree_sizes=(128 * KIB, MIB, 8 * MIB),
    workers=4, queries=15, query_size=8 * MIB, gradient_size=8 * MIB,
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    kind: Kind
    subject: str
    """Us, or the name of a peer."""
    hosts: int
    rate: float
    cells: tuple[Cell, ...] = ()
    bare: bool = False
    queries: int = 0
    size: int = 0
    degree: int = 0
    """The degree of every reduce tree; 0 leaves it to the directory."""

    @property
    def title(self) -> str:
        who = OURS if self.subject == OURS else PEERS[self.subject].title
        forced = f", degree {self.degree}" if self.degree else ""
        return f"{self.kind}: {who}, {self.hosts} hosts{forced}"

    @property
    def key(self) -> str:
        """The same for what is the same to measure, so that a run can go on where another one ended."""
        return f"{self.title} #{hashlib.blake2b(repr(self).encode(), digest_size=4).hexdigest()}"

    @property
    def steps(self) -> int:
        """How often it tells that it went on."""
        return sum(cell.rounds * (1 + self.beside_bare(cell)) for cell in self.cells) + 3 * self.queries

    def beside_bare(self, cell: Cell) -> bool:
        return self.bare or (cell.operation == "rtt" and self.subject == OURS)

    @property
    def seconds(self) -> float:
        """About how long it takes, on two cores."""
        application = 3 * self.queries * (0.1 + 1.3 * self.size / self.rate)
        return self.least_seconds + application + sum(self._cell_seconds(cell) for cell in self.cells)

    @property
    def least_seconds(self) -> float:
        """What of that is gone before the first figure."""
        return _START[self.subject] * (self.hosts + 2)

    def _cell_seconds(self, cell: Cell) -> float:
        bare = self.beside_bare(cell)  # bare sockets are started for every cell
        return cell.rounds * self._round_seconds(cell) * (1 + bare) + bare * 0.3 * self.hosts

    def _round_seconds(self, cell: Cell) -> float:
        limit = limit_seconds(cell.operation, self.hosts, cell.size, self.rate)
        if cell.operation == "rtt":
            return calls_of(cell.size) * (1.2 * limit + 0.01)
        moved = limit * _SLOWNESS[self.subject](self.hosts)
        prepared = 0.1 + 0.01 * self.hosts + self.hosts * cell.size / 300e6
        return moved + prepared + self.hosts * cell.spacing


_CELL_SECONDS = 15.0
# Guesses from runs on two cores: seconds to start one host, and how many times the limit an operation takes.
_START = {OURS: 0.8, "openmpi": 0.8, "openmpi-pipelined": 0.8, "gloo": 2.0, "ray": 5.0, "dask": 2.0}
_SLOWNESS: dict[str, Callable[[int], float]] = {
    OURS: lambda _: 1.3,
    "openmpi": lambda hosts: hosts / 3,
    "openmpi-pipelined": lambda _: 2.0,
    "gloo": lambda hosts: hosts / 3,
    "ray": float,
    "dask": float,
}


def parts(grid: Grid, peers: Sequence[str]) -> list[Part]:
    """Of the peers, first what all of them do with few hosts: what is missing if the time is up is the rest."""
    theirs = [part for name in peers for part in _peer(grid, name)]
    return [*_ours(grid), *sorted(theirs, key=lambda part: part.hosts)]


def _ours(grid: Grid) -> Iterator[Part]:
    rate = grid.rate
    for hosts in grid.hosts:
        trips = _trips(grid) if hosts == min(grid.hosts) else ()
        yield Part(Kind.SWEEP, OURS, hosts, rate, (*trips, *_sweep(grid)), bare=grid.bare)
    yield Part(Kind.STAGGERED, OURS, grid.staggered_hosts, rate, _staggered(grid))
    yield Part(Kind.SERVING, OURS, grid.workers + 1, rate, queries=grid.queries, size=grid.query_size)
    yield Part(Kind.TRAINING, OURS, grid.workers + 1, rate, queries=grid.queries, size=grid.gradient_size)
    reduces = tuple(_cell("reduce", size, grid) for size in grid.degree_sizes)
    for degree in (1, 2, grid.degree_hosts, 0):
        yield Part(Kind.DEGREES, OURS, grid.degree_hosts, rate, reduces, degree=degree)


def _peer(grid: Grid, name: str) -> Iterator[Part]:
    for hosts in grid.peer_hosts:
        trips = _trips(grid) if hosts == min(grid.peer_hosts) and name not in ALIKE else ()
        yield Part(Kind.SWEEP, name, hosts, grid.rate, (*trips, *_sweep(grid)))
    if name in ONE_PROGRAM_PER_HOST:
        yield Part(Kind.STAGGERED, name, grid.staggered_hosts, grid.rate, _staggered(grid))


def _cell(operation: str, size: int, grid: Grid, spacing: float = 0.0) -> Cell:
    """An untimed round, a timed one, and the rest while it does not take too long: some peers are slow."""
    return Cell(operation, size, grid.repeat + 1, 2, _CELL_SECONDS, spacing)


def _trips(grid: Grid) -> tuple[Cell, ...]:
    return tuple(_cell("rtt", size, grid) for size in grid.trips)


def _sweep(grid: Grid) -> tuple[Cell, ...]:
    return tuple(_cell(operation, size, grid) for operation in OPERATIONS for size in grid.sizes)


def _staggered(grid: Grid) -> tuple[Cell, ...]:
    return tuple(
        _cell(operation, grid.staggered_size, grid, spacing) for operation in STAGGERED for spacing in grid.spacings
    )
