"""Metrics of live processes: what is scraped, and what a scraper or its port can do to a process, which is nothing."""

import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from hoplite_ucx.errors import HopliteError
from hoplite_ucx.metrics import endpoint
from hoplite_ucx.runtime.launch.cluster import agent_task
from tests.tools.live import RATE, TOKEN, Host, Live, live_cluster, patient, spawn
from tests.tools.waiting import HANG, eventually

parser = pytest.importorskip("prometheus_client.parser")

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "hoplite.json"
LARGE = np.arange(1 << 19)  # 4 MiB
PORT = "HOPLITE_METRICS_PORT"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def scraped() -> Iterator[Live]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(PORT, "0")
        with live_cluster(3, settings=patient()) as live:
            directory = live.directory.report["metrics"]
            eventually(lambda: value(samples(directory), "hoplite_nodes", state="connected") == 3)
            yield live


def text_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=HANG) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return str(answer.read().decode())


def samples(url: str) -> Samples:
    families = list(parser.text_string_to_metric_families(text_of(url)))
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def rise(before: Samples, after: Samples, name: str, **labels: str) -> float:
    """Other tests use the same processes."""
    return value(after, name, **labels) - before.get((name, frozenset(labels.items())), 0.0)


def of(host: Host) -> Samples:
    return samples(host.agent.report["metrics"])


def test_a_transfer_shows_at_both_ends_and_at_the_directory(scraped: Live) -> None:
    directory = scraped.directory.report["metrics"]
    sender, receiver, other = scraped.hosts
    before, *at = samples(directory), of(sender), of(receiver), of(other)
    ref = sender.put(LARGE)
    assert np.array_equal(receiver.get(ref), LARGE)
    sent, got, beside = ((old, of(host)) for old, host in zip(at, scraped.hosts, strict=True))
    carried = {"name": "hoplite_transfer_bytes_total", "transport": "tcp"}
    assert rise(*got, **carried, direction="received") >= LARGE.nbytes
    assert rise(*sent, **carried, direction="sent") >= LARGE.nbytes
    assert rise(*got, "hoplite_call_duration_seconds_count", call="get") == 1
    assert rise(*sent, "hoplite_call_duration_seconds_count", call="put") == 1
    assert rise(*got, "hoplite_streams_total", direction="received") == 1
    assert value(sent[1], "hoplite_store_used_bytes") >= LARGE.nbytes
    assert rise(*beside, **carried, direction="received") == 0
    told = before, samples(directory)
    assert rise(*told, "hoplite_placements_total") == 1
    assert value(told[1], "hoplite_nodes", state="connected") == 3
    assert rise(*told, "hoplite_directory_message_duration_seconds_count", message="Want") >= 1


def test_a_reduction_shows_its_time_and_its_slots(scraped: Live) -> None:
    directory = scraped.directory.report["metrics"]
    before, at = samples(directory), [of(host) for host in scraped.hosts]
    refs = [host.put(LARGE) for host in scraped.hosts]
    target = scraped.hosts[0].reduce(refs)
    assert np.array_equal(scraped.hosts[0].get(target), 3 * LARGE)
    eventually(lambda: rise(before, samples(directory), "hoplite_reduction_duration_seconds_count") == 1)
    assert rise(before, samples(directory), "hoplite_slots_bound_total") >= 1
    hosts = zip(at, scraped.hosts, strict=True)
    assert sum(rise(old, of(host), "hoplite_slots_total") for old, host in hosts) >= 1


def test_a_failed_call_is_counted_by_its_kind(scraped: Live) -> None:
    host = scraped.hosts[1]
    before = of(host)
    ref = host.put(LARGE)
    host.delete(ref)
    with pytest.raises(HopliteError):
        host.get(ref)
    assert rise(before, of(host), "hoplite_calls_failed_total", call="get", kind="deleted") == 1


def test_a_killed_node_is_suspected_and_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORT, "0")
    with live_cluster(2) as live:
        directory = live.directory.report["metrics"]
        eventually(lambda: value(samples(directory), "hoplite_nodes", state="connected") == 2)
        live.hosts[1].kill()
        eventually(lambda: value(samples(directory), "hoplite_deaths_total") == 1)
        found = samples(directory)
        assert value(found, "hoplite_suspicions_total") >= 1
        assert value(found, "hoplite_nodes", state="connected") == 1
        assert value(found, "hoplite_joins_total") == 2


def test_the_text_is_valid_and_keeps_the_conventions(scraped: Live) -> None:
    for url in (scraped.hosts[0].agent.report["metrics"], scraped.directory.report["metrics"]):
        seen = set()
        for family in parser.text_string_to_metric_families(text_of(url)):
            assert re.fullmatch(r"(hoplite|process)_[a-z_]+", family.name)
            assert family.documentation
            assert family.type in ("counter", "gauge", "histogram", "summary")
            for sample in family.samples:
                key = (sample.name, *sorted(sample.labels.items()))
                assert key not in seen
                seen.add(key)
                assert family.type != "counter" or sample.name.endswith("_total")
            if family.type == "histogram":
                _check_buckets(family)


def _check_buckets(family: object) -> None:
    by_labels: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
    counts: dict[frozenset[tuple[str, str]], float] = {}
    for sample in family.samples:  # type: ignore[attr-defined]
        labels = frozenset(item for item in sample.labels.items() if item[0] != "le")
        if sample.name.endswith("_bucket"):
            by_labels.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_count"):
            counts[labels] = sample.value
    for labels, buckets in by_labels.items():
        assert buckets == sorted(buckets)
        assert [count for _, count in buckets] == sorted(count for _, count in buckets)
        assert buckets[-1] == (float("inf"), counts[labels])


def test_every_query_of_the_dashboard_names_an_exported_metric(scraped: Live) -> None:
    exported = {"hoplite_device_used_bytes", "hoplite_device_pooled_bytes", "hoplite_device_limit_bytes"}
    exported |= {"hoplite_calls_failed_total"}  # families without a sample as long as there is no GPU, and no failure
    for url in (scraped.hosts[0].agent.report["metrics"], scraped.directory.report["metrics"]):
        exported |= {name for name, _ in samples(url)}
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    queries += [variable["definition"] for variable in dashboard["templating"]["list"] if "definition" in variable]
    assert len(queries) > 30
    for query in queries:
        named = set(re.findall(r"\b(?:hoplite|process)_\w+", query))
        assert named, query
        assert named <= exported, query


def test_scrapers_that_hang_or_hang_up_cost_nothing(
    scraped: Live, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PORT, "0")
    peer, host = scraped.hosts[0], scraped.add_host()  # started here, so that its messages are seen
    try:
        _scrape_badly(host, peer)
    finally:
        scraped.hosts.remove(host)
        host.client.close()
        host.agent.stop()
    assert capfd.readouterr().err == ""


def _scrape_badly(host: Host, peer: Host) -> None:
    where = urlsplit(host.agent.report["metrics"])
    address = (where.hostname, where.port)
    hanging = [socket.create_connection(address, HANG) for _ in range(3 * endpoint._MOST_REQUESTS)]
    for each in hanging:
        each.sendall(b"GET /metrics HTTP/1.1\r\n")
    ref = host.put(LARGE)
    assert np.array_equal(peer.get(ref), LARGE)
    for each in hanging:
        each.close()
    for _ in range(3):  # asks, and does not read the answer
        with socket.create_connection(address, HANG) as rude:
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            rude.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")

    def answers() -> bool:
        try:
            return bool(of(host))
        except OSError:  # all places are taken, until the hang-ups are noticed
            return False

    eventually(answers)


def test_a_port_in_use_is_one_line_and_the_agent_runs(scraped: Live, monkeypatch, capfd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv(PORT, str(taken.getsockname()[1]))
        agent = spawn("agent", agent_task(scraped.address, TOKEN, 1 << 28, RATE, "127.0.0.1"))
        agent.stop()
    assert agent.report["metrics"] is None
    (line,) = capfd.readouterr().err.splitlines()
    assert "metrics are not served at 127.0.0.1:" in line
    assert "Address already in use" in line
    assert "choose another metrics.port" in line


def test_without_the_library_there_is_one_line_and_the_agent_runs(scraped: Live, monkeypatch, capfd, tmp_path) -> None:
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('No module named prometheus_client')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(PORT, "0")
    agent = spawn("agent", agent_task(scraped.address, TOKEN, 1 << 28, RATE, "127.0.0.1"))
    agent.stop()
    assert agent.report["metrics"] is None
    (line,) = capfd.readouterr().err.splitlines()
    assert "No module named prometheus_client; pip install 'hoplite-ucx[metrics]'" in line


def test_nothing_is_loaded_for_metrics_that_nobody_wants() -> None:
    program = (
        "import sys, hoplite_ucx.runtime.agent.agent, hoplite_ucx.runtime.directory.server; "
        "sys.exit(bool({'prometheus_client', 'wsgiref', 'http.server'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=HANG).returncode == 0


def test_the_page_lists_every_metric(scraped: Live) -> None:
    page = set(re.findall(r"`(hoplite_\w+)`", (DASHBOARD.parents[1] / "observing.md").read_text()))
    families = [
        family
        for url in (scraped.hosts[0].agent.report["metrics"], scraped.directory.report["metrics"])
        for family in parser.text_string_to_metric_families(text_of(url))
        if family.name.startswith("hoplite_")
    ]
    assert page == {f"{each.name}_total" if each.type == "counter" else each.name for each in families}
