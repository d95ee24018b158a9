"""The report on the paper's figures: from made-up records, from broken ones, and from a small real run."""

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hoplite_ucx.bench.harness.journal import Journal
from hoplite_ucx.bench.harness.plots import load_pyplot
from hoplite_ucx.bench.harness.timing import Measurement
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.paper import plan
from hoplite_ucx.bench.paper.plan import OURS, QUICK, Kind, Part, parts
from hoplite_ucx.bench.paper.report import SECTIONS, page
from hoplite_ucx.bench.paper.running import run_parts
from hoplite_ucx.bench.peers.launching import PEERS
from hoplite_ucx.bench.peers.rounds import Cell
from hoplite_ucx.cli import app
from hoplite_ucx.cli.bench import paper

MIB = 1 << 20


class Silent:
    """Nobody watches; what was run is kept."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str | None]] = []

    def begin(self, part: Part, number: int, total: int) -> None: ...
    def advance(self) -> None: ...
    def end(self, part: Part, seconds: float, problem: str | None) -> None:
        self.ended.append((part.title, problem))


@pytest.fixture
def _drawn() -> None:
    try:
        load_pyplot()
    except PeerError as missing:
        pytest.skip(str(missing))


def made_up(journal: Journal, part: Part) -> None:
    """What running a part would tell, with invented times."""
    journal.begin(part.key)
    title = "" if part.subject == OURS else f"{PEERS[part.subject].title} "
    for cell in part.cells:
        settings: dict[str, Any] = {
            "operation": cell.operation, "hosts": part.hosts, "size": cell.size, "rate": part.rate,
            "spacing": cell.spacing, "degree": part.degree, "versions": {"thing": "1.2.3"},
        }  # fmt: skip
        if title:
            settings["peer"] = part.subject
        measured = Measurement(f"{title}{cell.operation}", (0.01, 0.02, 0.04), 0.009, settings)
        journal.tell(part.key, {"kind": part.kind, **json.loads(measured.json_line())})
    for number in range(3 * part.queries):
        event = {part.queries: "failed", 2 * part.queries: "rejoined"}.get(number)
        lap = {"began": float(number), "seconds": 0.1, "workers": 4, "event": event}
        journal.tell(part.key, {"kind": part.kind, "hosts": part.hosts, **lap})
    journal.finish(part.key, 1.0)


class Outside(HTMLParser):
    """Whatever a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures: list[bytes] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "srcset", "data") and value is not None:
                if value.startswith("data:image/svg+xml;base64,"):
                    self.pictures.append(base64.b64decode(value.partition(",")[2]))
                elif not value.startswith("#"):
                    self.fetched.append(value)


@pytest.mark.usefixtures("_drawn")
def test_every_figure_is_in_the_report_and_nothing_is_outside_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "records.jsonl")
    journal.begin_run({"begun": "now", "command": "hoplite <bench>", "grid": "quick", "rate": 125e6})
    for part in parts(QUICK, list(PEERS)):
        made_up(journal, part)
    text = page(journal)
    found = Outside()
    found.feed(text)
    assert found.fetched == []
    assert not re.search(r"@import|url\(|<script|<link", text)
    assert len(found.pictures) == len(SECTIONS) == 6
    for picture in found.pictures:
        assert b"<svg" in picture
        fetched = re.findall(rb'(?:href|src)="([^"]*)"', picture)
        assert all(reference.startswith(b"#") for reference in fetched)
    for figure in ("6", "7", "8", "12", "13"):
        assert f'id="figure-{figure}"' in text
    assert "hoplite &lt;bench&gt;" in text
    assert "Gloo (thing 1.2.3)" in text
    assert "100 ms in the round in which a worker was killed (1.00 ×)" in text
    assert "Everything in the plan was run" in text
    assert "no records of this figure" not in text


@pytest.mark.usefixtures("_drawn")
def test_what_is_missing_is_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "records.jsonl")
    with pytest.raises(PeerError, match="no records yet"):
        page(journal)
    made_up(journal, Part(Kind.STAGGERED, OURS, 4, 125e6, (Cell("reduce", MIB, 3, spacing=0.1),)))
    journal.tell("peer ray", {"what": "Ray", "not_run": "no <such> thing"})
    text = page(journal)
    assert text.count("no records of this figure") == len(SECTIONS) - 1
    assert "no &lt;such&gt; thing" in text
    assert "Peers measured: none" in text


def test_a_journal_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    first = Journal(path)
    first.begin("a")
    first.tell("a", {"seconds": 1})
    first.finish("a", 1.0)
    first.begin("b")
    first.tell("b", {"seconds": 2})
    with path.open("a") as file:
        file.write('{"part": "b", "sec')  # killed while it wrote
    second = Journal(path)
    assert [record["seconds"] for record in second.records] == [1, 2]
    assert (second.has_finished("a"), second.has_finished("b")) == (True, False)
    second.begin("b")
    second.tell("b", {"seconds": 3})
    assert [record["seconds"] for record in Journal(path).records] == [1, 3]


@pytest.mark.parametrize("line", ["{not json", "[1]", '{"seconds": 1}', '{"run": 3}'])
def test_records_that_are_none_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(f'{{"part": "a", "begun": true}}\n{line}\n')
    with pytest.raises(PeerError, match=r"line 2 of .* choose another --output"):
        Journal(path)


def test_the_same_part_has_the_same_name_in_every_run() -> None:
    chosen = parts(QUICK, list(PEERS))
    keys = [part.key for part in chosen]
    assert len(set(keys)) == len(keys)
    assert keys == [part.key for part in parts(QUICK, list(PEERS))]
    assert not set(keys) & {part.key for part in parts(replace(QUICK, rate=1e6), list(PEERS))}
    assert {part.kind for part in chosen} == set(Kind)


@pytest.mark.parametrize("grid", [plan.QUICK, plan.DEFAULT])
def test_a_grid_is_guessed_to_end_in_time(grid: plan.Grid) -> None:
    """With everything that always runs; the peers fill what is left."""
    ours = sum(part.seconds for part in parts(grid, []))
    assert ours < 0.6 * 60 * grid.minutes


def test_what_has_no_time_left_is_told_and_left_for_the_next_run(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "records.jsonl")
    chosen = parts(QUICK, [])[:1]
    (problem,) = run_parts(journal, chosen, 0.0, Silent())
    assert "the time was up" in problem
    assert not journal.has_finished(chosen[0].key)


def command(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", "paper", *map(str, arguments)])


@pytest.mark.usefixtures("emulated_hosts", "_drawn")
def test_folders_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text("something else\n")
    refused = command("--quick", "--output", tmp_path)
    assert (refused.exit_code, (tmp_path / "records.jsonl").read_text()) == (1, "something else\n")
    assert "is not a record of this report" in refused.stderr


@pytest.mark.long(reason="measures for some ten seconds; what it runs, other tests run too")
@pytest.mark.usefixtures("emulated_hosts", "_drawn")
def test_a_small_real_run_and_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what no other test runs: operations and round trips are those of the other commands."""
    tiny = replace(
        QUICK, repeat=1, spacings=(0.02,), staggered_hosts=2, staggered_size=MIB, degree_hosts=2, degree_sizes=(MIB,),
        workers=2, queries=4, query_size=MIB, gradient_size=MIB,
    )  # fmt: skip
    chosen = [part for part in parts(tiny, []) if part.kind in (Kind.SERVING, Kind.TRAINING, Kind.STAGGERED)]
    chosen.append(next(part for part in parts(tiny, []) if part.degree == 2))
    monkeypatch.setattr(paper, "parts", lambda _grid, _peers: chosen)
    done = command("--quick", "--no-peers", "--output", tmp_path)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "report.html")
    assert "left" in done.stderr
    journal = Journal(tmp_path / "records.jsonl")
    assert all(journal.has_finished(part.key) for part in chosen)
    told = {kind: [record for record in journal.records if record.get("kind") == kind] for kind in Kind}
    for kind in (Kind.SERVING, Kind.TRAINING):
        assert [lap["event"] for lap in told[kind] if lap["event"]] == ["failed", "rejoined"]
    assert {lap["workers"] for lap in told[Kind.SERVING]} == {1, 2}
    assert [record["degree"] for record in told[Kind.DEGREES]] == [2]
    assert [record["operation"] for record in told[Kind.STAGGERED]] == ["broadcast", "reduce", "allreduce"]
    text = (tmp_path / "report.html").read_text()
    assert text.count("no records of this figure") == 3  # of the operations
    assert "left out by --no-peers" in text
    again = command("--quick", "--no-peers", "--output", tmp_path)
    assert (again.exit_code, again.stderr) == (0, "")  # nothing was left to do
    assert Journal(tmp_path / "records.jsonl").records == journal.records
