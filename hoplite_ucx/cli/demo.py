"""`hoplite demo`: several hosts on this machine, a broadcast and a reduce, and a host killed in the middle of each."""

from __future__ import annotations

import json
import signal
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from hoplite_ucx.bench.demo.acts import Act, Broadcast, Reduce
from hoplite_ucx.bench.demo.hosts import DemoError, Hosts
from hoplite_ucx.bench.demo.screen import Screen
from hoplite_ucx.bench.harness.timing import PAYLOAD
from hoplite_ucx.bench.hosts.namespaces import ClusterError
from hoplite_ucx.cli.quantities import (
    bandwidth_option,
    format_bandwidth,
    format_duration,
    format_size,
    size_option,
)
from hoplite_ucx.cli.signals import INTERRUPTED
from hoplite_ucx.errors import HopliteError

# Typer parses a default as it parses what is typed.
_SIZE: int = "64MiB"  # type: ignore[assignment]
_RATE: float = "1gbit"  # type: ignore[assignment]
_SMALLEST = 1 << 20
_FEWEST, _MOST = 3, 32


def demo(
    hosts: Annotated[int, typer.Option(min=_FEWEST, max=_MOST, help="How many hosts.")] = 8,
    size: Annotated[int, typer.Option(parser=size_option, help="Size of each array, at least 1MiB.")] = _SIZE,
    rate: Annotated[float, typer.Option(parser=bandwidth_option, help="Rate of each host, in and out.")] = _RATE,
    kill: Annotated[bool, typer.Option("--kill/--no-kill", help="Kill a host in the middle of each act.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """A broadcast and a reduce between real processes on emulated hosts; a host is killed during each."""
    if size < _SMALLEST or size % 4:
        raise typer.BadParameter(f"at least 1MiB, in whole float32s, not {format_size(size)}", param_hint="--size")
    console = Console(highlight=False)
    screen = Screen(console, _time, quiet=as_json)
    began = time.monotonic()
    try:
        with Hosts(hosts, rate, size) as there:
            try:
                acts = _play(there, screen, kill=kill)
            finally:
                # Taking down must not be interrupted; it takes a moment, and is bounded.
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
    except KeyboardInterrupt:
        screen.say("interrupted; all hosts and processes are being removed")
        raise typer.Exit(INTERRUPTED) from None
    except (DemoError, ClusterError, HopliteError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    seconds = time.monotonic() - began
    if as_json:
        typer.echo(json.dumps(_report(there, acts, seconds)))
    else:
        _summary(screen, acts, seconds)
    if any(act.problems for act in acts):
        raise typer.Exit(1)


def _play(there: Hosts, screen: Screen, *, kill: bool) -> list[Act]:
    with screen.waiting("starting hosts"):
        there.up()
        _warm_up(there)
    kind = f"emulated hosts of {format_bandwidth(there.rate)}" if there.rate is not None else "hosts on loopback"
    screen.say(Text(f"{len(there.machines)} {kind}, each with an agent and a worker", "bold"))
    if there.remark:
        screen.say(Text(there.remark, "yellow"))
    screen.say("")
    broadcast = Broadcast(there, kill=kill, show=screen.show)
    with screen.act(1, f"broadcast of {format_size(there.size)} {broadcast.title}"):
        broadcast.play()
    gone = [machine for machine in there.machines if not machine.alive]
    if gone:
        with screen.waiting(f"host {gone[0].index} comes back"):
            there.start(gone)
            _warm_up(there)
    reduce = Reduce(there, kill=kill, show=screen.show)
    with screen.act(2, f"reduce of {format_size(there.size)} {reduce.title}"):
        reduce.play()
    return [broadcast, reduce]


def _warm_up(there: Hosts) -> None:
    """An untimed round, as before every measurement: it opens connections and touches memory for the first time."""
    round_before = Broadcast(there, kill=False, show=lambda _: None)
    round_before.play()
    if round_before.problems:
        raise DemoError("; ".join(round_before.problems))


def _summary(screen: Screen, acts: list[Act], seconds: float) -> None:
    for act in acts:
        screen.say(_verdict(act))
        if isinstance(act, Reduce):
            screen.say(_sources(act))
    problems = [problem for act in acts for problem in act.problems]
    for problem in problems:
        screen.say(Text(f"!  {problem}", "bold red"))
    if not problems:
        screen.say(Text.assemble(("every byte was right", "bold green"), f"   ({seconds:.0f} s in all)"))


def _verdict(act: Act) -> Text:
    if act.seconds is None:
        return Text(f"{act.name:<10} failed", "bold red")
    text = Text.assemble(f"{act.name:<10} ", (_time(act.seconds), "bold"))
    if act.limit is not None:
        text.append(f"   {act.seconds / act.limit:.2f} × the limit of {_time(act.limit)}")
    if act.killed is not None:
        text.append(f"   host {act.killed} died")
        if act.reroutes:
            text.append(f", rerouted in {_time(min(each.after for each in act.reroutes))}")
    return text


def _sources(act: Reduce) -> Text:
    made = f"{'':<10} made of {' + '.join(map(str, act.contributors))}"
    if act.after_last is None:
        return Text(made)
    waited = "the kill" if act.killed is not None and act.killed not in act.contributors else "the last of them came"
    ratio = f" ({act.after_last / act.limit:.2f} × the limit)" if act.limit is not None else ""
    return Text(f"{made}   {_time(act.after_last)}{ratio} after {waited}")


def _report(there: Hosts, acts: list[Act], seconds: float) -> dict[str, Any]:
    return {
        "hosts": len(there.machines),
        "emulated": there.emulated,
        "remark": there.remark,
        "rate": there.rate,
        "payload_rate": None if there.rate is None else PAYLOAD * there.rate,
        "size": there.size,
        **{act.name: act.report() for act in acts},
        "right": not any(act.problems for act in acts),
        "seconds": seconds,
    }


def _time(seconds: float) -> str:
    return format_duration(seconds, digits=3)
