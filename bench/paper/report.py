"""The report: one HTML file with pictures, tables, raw data and what is to be known about them, and nothing outside it.

It is made from a journal alone, so that it can be made again from a run that was interrupted.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hoplite_ucx.bench.harness.html_page import as_data, escape, page_of, table
from hoplite_ucx.bench.harness.journal import Journal, Record
from hoplite_ucx.bench.harness.plots import name_size
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.paper.pictures import PICTURES, SUBJECTS, Point, points_of
from hoplite_ucx.bench.paper.plan import SMALL, Kind

__all__ = ["SECTIONS", "Section", "page", "write_report"]


@dataclass(frozen=True)
class Section:
    picture: str
    title: str
    paper: str
    """What the paper's figure shows."""
    here: str
    """What was measured in its place, and where it differs."""
    reading: str
    kinds: tuple[Kind, ...]


SECTIONS = (
    Section(
        "6",
        "Figure 6: round trips",
        "Round trips between two machines for objects of 1 KB, 1 MB and 1 GB, with Hoplite, Open MPI, Ray and Dask.",
        "Host 0 puts an object, host 1 gets it and puts another of the same size, which host 0 gets. The largest size "
        "is scaled down with the rate, and the other hosts of the cluster are idle. A bar is the median over rounds of "
        "the median trip of a round; Gloo and a bare blocking socket, which knows who sends what, are added.",
        "Lower is better. For the smallest object what counts is calls and processes, for the largest one the link: "
        "there every bar should stand near twice the size over the rate. The leftmost panel is logarithmic.",
        (Kind.SWEEP,),
    ),
    Section(
        "7",
        "Figure 7: broadcast, gather, reduce and allreduce of large objects",
        "Latency of the four operations for 1 MB, 32 MB and 1 GB over 4 to 16 nodes, with Hoplite, Open MPI, Ray, "
        "Dask and Gloo.",
        "The same operations and, of the sizes, those that two cores can carry; 1 GB is left out. All objects "
        "exist before the clock starts, which then runs until the last host has its result. Gloo and Open MPI take "
        "their own choice of algorithms; a second Open MPI is forced to a pipelined chain and a ring, which the paper "
        "does not have. In the paper's allreduce, Ray and Dask have a separate panel; here all are in one.",
        "Lower is better, and flat is good: the dotted line is what the busiest link must carry at 95 % of its rate. "
        "It is flat for broadcast and reduce, nearly so for allreduce, and grows with the hosts for gather. Ratios "
        "below 1 at 1 MiB come from the burst that the shaper lets through.",
        (Kind.SWEEP,),
    ),
    Section(
        "8",
        "Figure 8: participants that arrive one by one",
        "Latency of broadcast, reduce and allreduce of a large object when the tasks start one after the other at a "
        "fixed interval.",
        "Host 0 comes first, then the others in order. Time runs from the first arrival until the last host that gets "
        "something has it; our times include each host's put. Peers that run the same program on every host call "
        "their collective when they come. Ray and Dask are not measured here.",
        "The dashed line is the moment of the last arrival: no system can be below it. Hoplite should stay a "
        "constant above it, since available objects already move; a system that waits for all hosts adds its whole "
        "operation.",
        (Kind.STAGGERED,),
    ),
    Section(
        "12",
        "Figure 12: a worker fails and comes back",
        "Latency of each query of an ensemble served by Ray Serve (a) and of each step of asynchronous SGD (b), with "
        "Hoplite and with Ray, while one task fails and rejoins.",
        "Two loops with the applications' communication without their models. (a) A front end puts a query, all "
        "workers get it and put an answer, and the front end gets the sum of the answers. (b) A server gets the sum of "
        "the first half of the gradients that are there, puts new parameters, and the contributors go on with those. "
        "In the middle of a round one worker is killed with -9 together with its host's agent, and started again at "
        "once. There is no GPU, no Ray, and no peer beside us.",
        "A round that loses a worker should take little more than the others, and none should wait for a timeout. "
        "Between the two lines one worker is missing, and its new processes load on the same two cores.",
        (Kind.SERVING, Kind.TRAINING),
    ),
    Section(
        "13",
        "Figure 13: the operations of small objects",
        "The operations of Figure 7 for 1 KB and 32 KB (the paper's Appendix A).",
        "The same rounds as for Figure 7. Objects of at most 32 KiB live in our directory and come with its answer.",
        "Lower is better. These are milliseconds on two cores that all hosts share: what differs by less than the "
        "error bars says nothing.",
        (Kind.SWEEP,),
    ),
    Section(
        "degrees",
        "Extra: the degree of reduce trees",
        "The paper chooses between a chain, a tree of degree 2 and a star by a cost model, and shows in an appendix "
        "what each of them takes.",
        "Every reduce is built with a fixed degree by a directory that is made for this measurement, and once by the "
        "directory as it is, which may choose any degree.",
        "The coloured bar should be no higher than the lowest of the others, within the error bars.",
        (Kind.DEGREES,),
    ),
)

_DIFFERENCES = (
    (
        "Hosts are network namespaces of one machine with shaped links, and share its few cores; the paper's were up "
        "to 16 machines of a cloud. What takes processor time, such as many processes or copies, costs everybody more."
    ),
    (
        "Sizes and rate are scaled down, so absolute seconds are not the paper's. Compare systems within a panel, and "
        "with the limit of the links."
    ),
    "This is a new implementation in Python, not the paper's C++ program, and peers are today's releases.",
    "No GPU and no RDMA was used.",
    (
        "Systems run one after the other, each alone on its hosts. Marks are medians of few rounds; error bars span "
        "the fastest and the slowest of them."
    ),
    (
        "Which figure shows what is taken from the instructions of the authors' artifact (6, 7, 12, 13). Figure 8 is "
        "hosts that come one by one, as we understand it; the degrees of trees are a section of our own."
    ),
)


def write_report(journal: Journal, path: Path) -> None:
    text = page(journal)
    try:
        path.write_text(text)
    except OSError as error:
        raise PeerError(f"the report cannot be written: {error}") from error


def page(journal: Journal) -> str:
    records = journal.records
    if not records:
        raise PeerError(f"{journal.path} holds no records yet")
    body = [*_head(journal), *(part for section in SECTIONS for part in _section(section, records)), *_tail(journal)]
    return page_of("Hoplite's figures at emulated scale", body)


# --- what surrounds the figures ---------------------------------------------------------------------------------


def _head(journal: Journal) -> Iterator[str]:
    yield "<h1>Hoplite's figures at emulated scale</h1>"
    yield (
        "<p>Figures 6, 7, 8, 12 and 13 of <em>Hoplite: Efficient and Fault-Tolerant Collective Communication for "
        "Task-Based Distributed Systems</em> (SIGCOMM 2021), measured again with hoplite-ucx on emulated hosts.</p>"
    )
    rows = [_run_row(run) for run in journal.runs]
    yield table(("begun", "command", "grid", "rate", "machine", "versions"), rows)
    peers = {title: sorted(_versions_of(journal.records, title)) for title in SUBJECTS[2:]}
    told = [f"{title} ({', '.join(found)})" for title, found in peers.items() if found]
    yield f"<p>Peers measured: {escape('; '.join(told) or 'none')}.</p>"
    yield "<h2>What differs from the paper</h2><ul>"
    yield from (f"<li>{escape(each)}</li>" for each in _DIFFERENCES)
    yield "</ul>"


def _run_row(run: Record) -> list[str]:
    machine = run.get("machine", {})
    of_machine = (
        f"{machine.get('cores')} cores, {int(machine.get('memory', 0)) >> 30} GiB, Linux {machine.get('kernel')}, "
        f"Python {machine.get('python')}, load {machine.get('load')}"
    )
    versions = ", ".join(f"{name} {version}" for name, version in run.get("versions", {}).items())
    rate = f"{float(run.get('rate', 0)) * 8 / 1e6:g} Mbit/s a host"
    return [str(run.get("begun")), str(run.get("command")), str(run.get("grid")), rate, of_machine, versions]


def _versions_of(records: Iterable[Record], title: str) -> set[str]:
    return {
        " ".join(pair)
        for record in records
        if "peer" in record and str(record.get("what", "")).startswith(f"{title} {record.get('operation')}")
        for pair in record.get("versions", {}).items()
    }


def _tail(journal: Journal) -> Iterator[str]:
    yield "<h2>Not run</h2>"
    skipped = [record for record in journal.records if "not_run" in record]
    if skipped:
        yield "<dl>"
        for record in skipped:
            yield f"<dt>{escape(record.get('what'))}</dt><dd>{escape(record['not_run'])}</dd>"
        yield "</dl>"
    else:
        yield "<p>Everything in the plan was run.</p>"
    lines = "\n".join(journal.lines)
    yield "<h2>Raw data</h2><p>JSON lines, as they also lie beside this file in <code>records.jsonl</code>.</p>"
    yield f"<details><summary>{len(journal.lines)} lines</summary><pre>{escape(lines)}</pre></details>"


# --- figures ----------------------------------------------------------------------------------------------------


def _section(section: Section, records: Sequence[Record]) -> Iterator[str]:
    yield f'<h2 id="figure-{section.picture}">{escape(section.title)}</h2>'
    yield f"<p><strong>In the paper.</strong> {escape(section.paper)}</p>"
    yield f"<p><strong>Here.</strong> {escape(section.here)}</p>"
    yield f"<p><strong>How to read it.</strong> {escape(section.reading)}</p>"
    picture = PICTURES[section.picture](records)
    if picture is None:
        yield '<p class="missing">There are no records of this figure: see what was not run, below.</p>'
        return
    yield f'<p><img alt="{escape(section.title)}" src="{as_data(picture)}"></p>'
    points = [point for point in points_of(records) if point.kind in section.kinds and _belongs(point, section)]
    if points:
        yield f"<details><summary>Figures</summary>{_figures(points)}</details>"
    yield from (f"<p>{escape(line)}</p>" for kind in section.kinds for line in _told_of_laps(kind, records))


def _belongs(point: Point, section: Section) -> bool:
    """Figures 6, 7 and 13 share their parts."""
    if Kind.SWEEP not in section.kinds:
        return True
    figure = "6" if point.figure.operation == "rtt" else "13" if point.figure.size <= SMALL else "7"
    return figure == section.picture


def _figures(points: Sequence[Point]) -> str:
    rows = []
    for point in points:
        figure = point.figure
        rows.append(
            [
                figure.operation,
                figure.subject,
                str(figure.hosts),
                name_size(figure.size),
                f"{point.spacing:g}" if point.kind == Kind.STAGGERED else str(point.degree or "") or "",
                *(f"{seconds * 1e3:.3g}" for seconds in (figure.seconds, figure.fastest, figure.slowest)),
                "" if figure.ratio is None or figure.size <= SMALL else f"{figure.ratio:.2f}",
            ]
        )
    apart = {Kind.STAGGERED.value: "apart, s", Kind.DEGREES.value: "degree"}.get(points[0].kind, "")
    columns = ("", "system", "hosts", "size", apart, "median, ms", "fastest", "slowest", "× limit")
    return table(columns, rows)


def _told_of_laps(kind: Kind, records: Sequence[Record]) -> Iterator[str]:
    laps = [record for record in records if record.get("kind") == kind and "began" in record]
    failed = [lap for lap in laps if lap["event"] == "failed"]
    before = [lap["seconds"] for lap in laps if failed and lap["began"] < failed[0]["began"]]
    if not before:
        return
    back = [lap for lap in laps if lap["event"] == "rejoined"]
    usual = statistics.median(before)
    during = failed[0]["seconds"]
    told = (
        f"{kind}: {usual * 1e3:.0f} ms a round before (median of {len(before)}, slowest {max(before) * 1e3:.0f} ms), "
        f"{during * 1e3:.0f} ms in the round in which a worker was killed ({during / usual:.2f} ×)"
    )
    if back:
        after = [lap["seconds"] for lap in laps if lap["began"] > back[0]["began"]]
        told += f", back after {back[0]['began'] - failed[0]['began']:.1f} s"
        told += f", {statistics.median(after) * 1e3:.0f} ms from then on" if after else ""
    yield told + "."
