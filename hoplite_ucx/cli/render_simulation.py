"""How simulated transfers look on a terminal: one headline, what happened on the way, the tree, a small table.

Trees stay readable whatever their size: a run of hosts with one child each stands on one line, shortened in the
middle, and so do siblings that feed nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from hoplite_ucx.cli.quantities import format_bandwidth, format_duration, format_size
from hoplite_ucx.simulate.directory_costs import DirectoryCosts
from hoplite_ucx.simulate.measure import Ending, Reduced, Result, StaticResult
from hoplite_ucx.simulate.scenario import Pattern, Scenario

_DIGITS = 3
# As many hosts as fit on one line; of more, the first and last few are shown.
_HOSTS_IN_LINE = 14
_SHOWN_FIRST = 3
_SHOWN_LAST = 1
# As many receivers as are listed one by one; of more, the fastest, the median and the slowest are.
_LISTED = 16


def broadcast_report(scenario: Scenario, result: Result, static: Sequence[StaticResult]) -> Iterator[RenderableType]:
    shape = scenario.shape
    receivers = shape.nodes - scenario.copies
    source = "host 0" if scenario.copies == 1 else f"{scenario.copies} copies"
    yield _title(f"broadcast of {format_size(scenario.size)} from {source} to {_hosts(receivers)}", scenario)
    yield _headline(result)
    yield from _incidents(scenario, result)
    if result.cut:
        yield Text(f"    in {result.cut} stripes, each along a tree of its own\n")
    if result.edges or not result.cut:
        tree = _tree(scenario, result, result.edges, " → ") if result.edges else ""
        yield Padding(tree, (1, 0, 1, 2), expand=False)
    yield _receivers(result)
    if result.again is not None:
        yield Text.assemble("\nput again, and all hosts asked again: ", _verdict(result.again))
        yield from _unanswered(result.again)
    if static:
        yield Text("")
        yield _comparison(result, result.seconds, static)


def gather_report(scenario: Scenario, result: Result) -> Iterator[RenderableType]:
    sources = scenario.shape.nodes - 1
    yield _title(f"gather of {format_size(scenario.size)} from each of {_hosts(sources)} to host 0", scenario)
    yield _headline(result)
    yield from _incidents(scenario, result)
    if result.edges:
        line = Text("0 ← ").append_text(_joined(scenario, result, [sender for sender, _ in result.edges], " · "))
        yield Padding(line, (1, 0, 1, 2), expand=False)
    yield _receivers(result, "from host")


def reduce_report(scenario: Scenario, result: Reduced, static: Sequence[StaticResult]) -> Iterator[RenderableType]:
    nodes, count = scenario.shape.nodes, scenario.count
    taken = "" if count in (None, nodes) else f"the first {count} of "
    getters = "host 0" if scenario.getters == 1 else _hosts(scenario.getters)
    what = "allreduce" if scenario.everywhere else "reduce"
    yield _title(f"{what} of {format_size(scenario.size)} from {taken}{_hosts(nodes)} to {getters}", scenario)
    yield _headline(result)
    if scenario.arrivals.pattern is not Pattern.TOGETHER and result.contributors:
        after = f"{_time(result.after_last_seconds)} ({result.after_last_ratio:.3f} × the limit)"
        yield Text(f"    {after} after its last source, which came at {_time(result.ready_seconds)}")
    yield from _incidents(scenario, result)
    for rebinding in result.rebindings[:_LISTED]:
        what = f"started over on host {rebinding.new}" if rebinding.restarted else f"continued on host {rebinding.new}"
        yield Text.assemble(("  ↻ ", "cyan"), f"the slot of host {rebinding.old} {what} at {_time(rebinding.at)}")
    if result.rebindings:
        yield Text(f"    {len(result.restarted)} of {result.slots} slots started over")
    if result.contributors and len(result.contributors) < nodes:
        yield Text.assemble("    made of ", _joined(scenario, result, sorted(result.contributors), " + "))
    if result.stripes > 1:
        yield Text(f"    in {result.stripes} stripes, each of them a chain along the same ring\n")
    elif result.edges:
        flipped = [(receiver, sender) for sender, receiver in result.edges]
        yield Padding(_tree(scenario, result, flipped, " ← "), (1, 0, 1, 2), expand=False)
    yield _receivers(result)
    if static:
        yield Text("")
        yield _comparison(result, result.after_last_seconds, static)


def _title(what: str, scenario: Scenario) -> Text:
    shape = scenario.shape
    link = f"{format_bandwidth(shape.bandwidth)}, latency {format_duration(shape.latency)}"
    delays = f"hand-over {format_duration(shape.handover)}, {_directory(shape.directory_costs)}"
    return Text.assemble((what, "bold"), (f"\n{link}, {delays}\n", "dim"))


def _directory(costs: DirectoryCosts) -> str:
    if not costs:
        return "directory without delay"
    return f"directory {format_duration(costs.of_placement, 3)} a placement"


def _headline(result: Result) -> Text:
    return Text.assemble("  ", _verdict(result))


def _verdict(result: Result) -> Text:
    if result.endings and len(result.failures) == len(result.endings):
        return Text(f"every get failed, the last one after {_time(result.seconds)}", "bold red")
    style = "bold green" if not result.failures else "bold yellow"
    return Text.assemble(
        (_time(result.seconds), style),
        f"   {result.ratio:.3f} × the limit of {_time(result.limit_seconds)}",
    )


def _incidents(scenario: Scenario, result: Result) -> Iterator[Text]:
    for killed in result.killed:
        noticed = f", noticed {_time(killed.noticed_after)} later" if killed.noticed_after is not None else ""
        yield Text.assemble(("  ✗ ", "red"), f"host {killed.host} died at {_time(killed.at)}{noticed}")
    for host in {kill.host for kill in scenario.kills} - {killed.host for killed in result.killed}:
        yield Text(f"    host {host} was not killed: all hosts were done before")
    for move in result.moves[:_LISTED]:
        yield Text.assemble(
            ("  ↪ ", "cyan"),
            f"host {move.host} continued from host {move.new} instead of {move.old} at {_time(move.at)}",
        )
    if len(result.moves) > _LISTED:
        yield Text(f"    and {len(result.moves) - _LISTED} more moves")
    for text in dict.fromkeys(str(failure) for failure in result.failures.values()):
        count = sum(str(failure) == text for failure in result.failures.values())
        yield Text.assemble(("  ! ", "red"), f"{_gets(count)} failed: {text}")
    if result.loss is not None and result.loss.by_host:
        lost = f"the other hosts lost at most {_time(max(0.0, result.loss.worst))}"
        yield Text.assemble(("  = ", "green"), f"{lost} (undisturbed: {_time(result.loss.calm_seconds)})")
    yield from _unanswered(result)


def _unanswered(result: Result) -> Iterator[Text]:
    if result.unanswered:
        yield Text(f"  ! {_gets(len(result.unanswered))} never returned", "bold red")


def _receivers(result: Result, what: str = "host") -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("", what, "asked at", "took", "× limit"):
        table.add_column(column, justify="right")
    endings = sorted(result.endings, key=lambda ending: ending.host)
    if len(endings) <= _LISTED:
        for ending in endings:
            _row(table, "", ending)
    else:
        ordered = sorted(endings, key=lambda ending: ending.seconds)
        _row(table, "fastest", ordered[0])
        table.add_row("median", "", "", _time(median(ending.seconds for ending in endings)), "")
        _row(table, "slowest", ordered[-1])
    return table


def _row(table: Table, label: str, ending: Ending) -> None:
    outcome = f"{ending.ratio:.3f}" if ending.failure is None else Text(ending.failure.kind.value, "red")
    table.add_row(label, str(ending.host), _time(ending.asked), _time(ending.seconds), outcome)


def _comparison(result: Result, ours: float, static: Sequence[StaticResult]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("tree")
    for column in ("took", "× limit", "× ours"):
        table.add_column(column, justify="right")
    served = {True: "at once", False: "one by one", None: ""}
    rows = [(tree.seconds, tree.name, served[tree.at_once], "") for tree in static]
    if any(tree.at_once is not None for tree in static):
        table.add_column("children served")
        rows.append((ours, "ours", "as planned", "bold green"))
    else:
        rows.append((ours, "ours", "", "bold green"))
    for seconds, name, way, style in sorted(rows, key=lambda row: (row[0], not row[3])):
        ratios = (f"{seconds / result.limit_seconds:.3f}", f"{seconds / ours:.3f}")
        table.add_row(name, _time(seconds), *ratios, *filter(None, [way]), style=style)
    return table


# --- trees -----------------------------------------------------------------------------------------------------


def _tree(scenario: Scenario, result: Result, edges: Sequence[tuple[int, int]], joint: str) -> RenderableType:
    children: dict[int, list[int]] = {}
    for above, below in edges:
        children.setdefault(above, []).append(below)
    drawn: set[int] = set()

    def has_branch(host: int) -> bool:
        """A host that took over the slot of another stands in two places; what is below it is drawn once."""
        return host in children and host not in drawn

    def branch(host: int) -> Tree:
        run, below = [host], children[host]
        drawn.add(host)
        while len(below) == 1:
            run.append(below[0])
            below = children[below[0]] if has_branch(below[0]) else []
            drawn.add(run[-1])
        tree = Tree(_joined(scenario, result, run, joint), guide_style="dim")
        leaves = [child for child in below if child not in children]
        for child in below:
            if has_branch(child):
                tree.add(branch(child))
            elif child in children:
                leaves.append(child)
        if leaves:
            tree.add(_joined(scenario, result, leaves, " · "))
        return tree

    belows = {below for _, below in edges}
    roots = [branch(host) for host in children if host not in belows] or [branch(edges[-1][0])]
    if len(roots) == 1:
        return roots[0]
    forest = Tree("", hide_root=True)
    forest.children = roots
    return forest


def _joined(scenario: Scenario, result: Result, hosts: list[int], joint: str) -> Text:
    shown: list[int | None] = [*hosts]
    if len(hosts) > _HOSTS_IN_LINE:
        shown = [*hosts[:_SHOWN_FIRST], None, *hosts[-_SHOWN_LAST:]]
    text = Text(joint).join([_host(scenario, result, host) for host in shown])
    if len(hosts) > _HOSTS_IN_LINE:
        text.append(f"   ({_hosts(len(hosts))})", "dim")
    return text


def _host(scenario: Scenario, result: Result, host: int | None) -> Text:
    if host is None:
        return Text("…", "dim")
    if any(killed.host == host for killed in result.killed):
        return Text(f"{host} ✗", "red")
    if host in scenario.slow:
        return Text(f"{host} ({format_bandwidth(scenario.shape.rates[host])})", "yellow")
    return Text(str(host))


def _time(seconds: float) -> str:
    return format_duration(seconds, _DIGITS)


def _hosts(count: int) -> str:
    return "1 host" if count == 1 else f"{count} hosts"


def _gets(count: int) -> str:
    return "1 get" if count == 1 else f"{count} gets"
