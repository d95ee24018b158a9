"""`hoplite bench faults | recovery | soak`: faults against real processes on emulated hosts, judged case by case."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hoplite_ucx.bench.faults.campaign import run_campaign
from hoplite_ucx.bench.faults.plotting import plot
from hoplite_ucx.bench.faults.recording import Record, Settings, Summary, kind_of, summarise
from hoplite_ucx.bench.faults.recovery import SUBJECTS, Found, measure_recovery
from hoplite_ucx.bench.harness.timing import progress_bar
from hoplite_ucx.bench.soak import driver
from hoplite_ucx.bench.soak.driver import Verdict
from hoplite_ucx.cli.bench.shared import RATE, Json, Rate, Repeat, Size, refusals
from hoplite_ucx.cli.quantities import format_bandwidth, format_duration, format_size

_SIZE: int = "16MiB"  # type: ignore[assignment]
_LARGE: int = "128MiB"  # type: ignore[assignment]
_RATE: float = "400mbit"  # type: ignore[assignment]


def add_to(app: typer.Typer) -> None:
    app.command()(faults)
    app.command()(recovery)
    app.command()(soak)


def faults(
    faults: Annotated[int, typer.Option(min=0, help="How many cases; those already recorded are not run again.")] = 30,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the random cases.")] = 0,
    minutes: Annotated[float | None, typer.Option(min=0.0, help="Start no new case after this time.")] = None,
    case: Annotated[list[int] | None, typer.Option(min=0, help="Run only this case; may be repeated.")] = None,
    hosts: Annotated[int, typer.Option(min=2, max=15, help="How many hosts; the directory runs on one more.")] = 4,
    size: Size = _SIZE,
    rate: Rate = _RATE,
    output: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Record cases in this file, and continue a run recorded there.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--plot", help="Plot recovery times to this path, as PNG and SVG (needs matplotlib).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Inject faults into broadcasts, gathers, reduces and allreduces, and check every result.

    Exits with status 1 if anything was wrong: a wrong byte, a hang, an error without a reason, a leftover.
    """
    settings = Settings(seed, hosts, size, rate)
    total = len(case) if case else faults
    with refusals(), progress_bar("faults", total, quiet=as_json) as advance:

        def told(record: Record) -> None:
            advance()
            if as_json:
                typer.echo(json.dumps(record))
            else:
                for problem in record["problems"]:
                    typer.echo(f"case {record['case']} ({_of(record)}): {problem}", err=True)

        seconds = None if minutes is None else 60 * minutes
        records = run_campaign(settings, faults, path=output, seconds=seconds, only=case or None, told=told)
        title = f"{len(records)} faults, {hosts} hosts of {format_bandwidth(rate)}, objects up to {format_size(size)}"
        if picture is not None and records:
            plot(records, title, picture)
    summary = summarise(records)
    if as_json:
        typer.echo(summary.json_line())
    else:
        _show(summary, title)
    if not summary.passed:
        raise typer.Exit(1)


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    return console


def _of(record: Record) -> str:
    if "fault" not in record:
        return "not played"
    return f"{record['operation']}, {kind_of(record)} of host {record['victim']}, the {record['role']}"


def _show(summary: Summary, title: str) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("fault")
    for column in ("cases", "noticed p50", "p99", "next byte p50", "p99", "all ended p50", "p99"):
        table.add_column(column, justify="right", no_wrap=True)
    for kind, cases in sorted(summary.by_fault.items()):
        cells = []
        for times in (summary.noticed.get(kind), summary.next_byte.get(kind), summary.completed.get(kind)):
            cells += ["-", "-"] if times is None else [format_duration(t, 3) for t in (times.p50, times.p99)]
        table.add_row(kind, str(cases), *cells)
    console = _console()
    console.print(title, style="bold", soft_wrap=True)
    console.print(table)
    counts = ", ".join(f"{name} {count}" for name, count in sorted(summary.by_operation.items()))
    errors = ", ".join(f"{name} {count}" for name, count in sorted(summary.errors.items()))
    console.print(f"operations: {counts}", style="dim", soft_wrap=True)
    console.print(f"hit: {', '.join(f'{n} {c}' for n, c in sorted(summary.by_role.items()))}", style="dim")
    console.print(f"calls ended as: {errors}", style="dim", soft_wrap=True)
    told = f"{len(summary.problems)} problems" if summary.problems else "nothing was wrong"
    console.print(told if summary.cases else "no case was run")


# --- one fault, again and again ---------------------------------------------------------------------------------


def recovery(
    what: Annotated[str, typer.Argument(help=f"One of {', '.join(SUBJECTS)}.")],
    hosts: Annotated[int, typer.Option(min=3, max=15, help="How many hosts; the directory runs on one more.")] = 8,
    size: Size = _LARGE,
    rate: Rate = RATE,
    repeat: Repeat = 5,
    as_json: Json = False,
) -> None:
    """One kind of fault in the middle of one operation, compared with the same operation undisturbed."""
    if what not in SUBJECTS:
        raise typer.BadParameter(f"{what!r} is not one of {', '.join(SUBJECTS)}", param_hint="what")
    with refusals(), progress_bar(what, repeat, quiet=as_json) as advance:
        found = measure_recovery(what, machines=hosts, size=size, rate=rate, repeat=repeat, advance=advance)
    if as_json:
        settings = {"hosts": hosts, "size": size, "rate": rate, "repeat": repeat}
        typer.echo(json.dumps({**asdict(found), "ratio": found.ratio, **settings}))
    else:
        subject = SUBJECTS[what]
        title = f"{subject.says}: {subject.operation.value} of {format_size(size)}, {hosts} hosts"
        _show_recovery(found, f"{title} of {format_bandwidth(rate)}")
    if found.problems:
        raise typer.Exit(1)


def _show_recovery(found: Found, title: str) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("", "count", "p50", "p99", "most"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    rows = {
        "undisturbed": found.undisturbed,
        "with the fault": found.disturbed,
        "noticed after": found.noticed,
        "next byte after": found.next_byte,
        "first error after": found.errors,
        "all calls ended after": found.ended,
    }
    for name, times in rows.items():
        if times is not None:
            table.add_row(name, str(times.count), *(format_duration(t, 3) for t in (times.p50, times.p99, times.most)))
    console = _console()
    console.print(title, style="bold", soft_wrap=True)
    console.print(table)
    ratio = "-" if found.ratio is None else f"{found.ratio:.3f}"
    console.print(f"disturbed to undisturbed: {ratio}; all values came in {found.values} rounds; hit: {found.hit}")
    for problem in found.problems:
        console.print(f"problem: {problem}", soft_wrap=True)


# --- endurance --------------------------------------------------------------------------------------------------


def soak(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long.")] = 30.0,
    hosts: Annotated[int, typer.Option(min=3, max=15, help="How many hosts; the directory runs on one more.")] = 4,
    workers: Annotated[int, typer.Option(min=1, max=8, help="How many workers on each.")] = 2,
    every: Annotated[float, typer.Option(min=1.0, help="Seconds from one fault to the next.")] = 12.0,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the random tasks and faults.")] = 0,
    rate: Rate = _RATE,
    as_json: Json = False,
) -> None:
    """Random puts, gets, reduces, deletes and faults from many workers; memory, descriptors and threads must not grow.

    Exits with status 1 if anything was wrong or grew.
    """
    with refusals(), progress_bar("soak", int(60 * minutes), quiet=as_json) as advance:
        verdict = driver.soak(
            seconds=60 * minutes, machines=hosts, lanes=workers, rate=rate, every=every, seed=seed, advance=advance
        )
    if as_json:
        typer.echo(json.dumps(verdict.told()))
    else:
        _show_soak(verdict)
    if not verdict.passed:
        raise typer.Exit(1)


def _show_soak(verdict: Verdict) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("process", "life", "memory", "descriptors", "threads", ""):
        table.add_column(column, no_wrap=True)
    for each in verdict.growth:
        first, last = each.first, each.last
        table.add_row(
            each.process,
            f"{each.seconds:.0f} s",
            f"{format_size(first.memory >> 10 << 10)} → {format_size(last.memory >> 10 << 10)}",
            f"{first.descriptors} → {last.descriptors}",
            f"{first.threads} → {last.threads}",
            "flat" if each.flat else "GROWS",
        )
    console = _console()
    console.print(f"{verdict.seconds / 60:.1f} minutes", style="bold", soft_wrap=True)
    console.print(table)
    for name, counts in {"tasks": verdict.tasks, "faults": verdict.faults, "errors": verdict.errors}.items():
        told = ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))
        console.print(f"{sum(counts.values())} {name}: {told}", soft_wrap=True)
    if not verdict.growth:
        console.print("no process ran long enough to judge: give more --minutes")
    for problem in verdict.problems:
        console.print(f"problem: {problem}", soft_wrap=True)
    console.print("passed" if verdict.passed else "FAILED")
