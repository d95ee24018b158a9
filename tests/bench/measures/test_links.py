"""Links beside the bare thing: every transport is measured, and nothing is called what it is not."""

import json
from importlib.util import find_spec

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster
from hoplite_ucx.bench.measures.links import CONTESTS, contests_here, measure_links, name_of_lanes
from hoplite_ucx.cli import app

needs_ucx = pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'")

SIZE = 4 << 20
FRAMES = [64 << 10, 1 << 20]


def bench(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", "links", *arguments])


@pytest.mark.parametrize(
    ("asked", "lanes", "name"),
    [
        ("ucx-tcp", ["tcp/lo"], "ucx tcp"),
        ("ucx-tcp", ["rc_mlx5/mlx5_0:1"], "ucx rc_mlx5 (rdma)"),
        ("rdma", ["rc_mlx5/mlx5_0:1", "rc_mlx5/mlx5_1:1"], "ucx rc_mlx5 (rdma)"),
        ("rdma", ["dc_mlx5/mlx5_0:1", "ud_mlx5/mlx5_0:1"], "ucx dc_mlx5+ud_mlx5 (rdma)"),
        ("ucx-tcp", [], "ucx of unknown lanes"),
    ],
)
def test_links_are_called_by_their_lanes(asked: str, lanes: list[str], name: str) -> None:
    assert name_of_lanes(asked, lanes) == name


@pytest.mark.parametrize("lanes", [["tcp/eth0"], ["rc_mlx5/mlx5_0:1", "tcp/eth0"], ["self/memory"], []])
def test_what_is_no_rdma_is_not_called_so(lanes: list[str]) -> None:
    with pytest.raises(PeerError, match="rdma was asked for, but UCX uses"):
        name_of_lanes("rdma", lanes)
    assert "rdma" not in name_of_lanes("ucx-tcp", lanes)


def test_only_what_is_here_is_measured_unless_told() -> None:
    assert [contest.name for contest in contests_here(ucx=False, rdma=False)] == ["tcp", "shm"]
    assert [contest.name for contest in contests_here(ucx=True, rdma=True, gpus=2)] == list(CONTESTS)
    on_gpus = [contest.name for contest in contests_here(ucx=False, rdma=False, gpus=1)]
    assert on_gpus == ["tcp", "shm", "tcp-gpu"]


@needs_ucx
def test_every_transport_on_loopback() -> None:
    contests = contests_here(ucx=True, rdma=False)
    results = measure_links(contests, size=SIZE, frames=FRAMES, repeat=2)
    streams = [(result.transport, result.frame) for result in results if result.frame is not None]
    names = ["tcp", "ucx tcp", "ucx posix", "shm"]
    assert streams == [(name, frame) for frame in FRAMES for name in names]
    echoes = [result for result in results if result.frame is None]
    assert [result.transport for result in echoes] == names[:3]
    assert all(result.ours.seconds > 0 for result in echoes)
    for result in results:
        assert len(result.ours.runs) == len(result.bare.runs) == 2
        assert result.rate_ratio == pytest.approx(result.bare.seconds / result.ours.seconds)
        assert result.lanes == {"ucx tcp": ("tcp/lo",), "ucx posix": ("posix/memory",)}.get(result.transport, ())
        assert (result.beside_tcp is None) == (result.transport == "tcp")


@pytest.mark.usefixtures("emulated_hosts")
def test_between_two_hosts() -> None:
    names = ["tcp", *(["ucx-tcp"] if find_spec("ucxx") else [])]
    with Cluster(2, None) as cluster:
        contests = [CONTESTS[name] for name in names]
        results = measure_links(contests, hosts=cluster.hosts, size=SIZE, frames=FRAMES[1:], repeat=1)
    assert {result.where for result in results} == {"two hosts"}
    assert {lane for result in results for lane in result.lanes} <= {"tcp/eth0"}


def test_figures_for_programs_and_for_people() -> None:
    options = ("--transport", "tcp", "--transport", "shm", "--size", "4MiB", "--frame", "1MiB", "--repeat", "1")
    lines = [json.loads(line) for line in bench(*options, "--no-hosts", "--json").stdout.splitlines()]
    assert [(line["transport"], line["what"]) for line in lines] == [
        ("tcp", "stream"),
        ("shm", "stream"),
        ("tcp", "round trip"),
    ]
    for line in lines:
        assert line["ratio"] == pytest.approx(line["seconds"] / line["limit_seconds"])
        assert line["rate_ratio"] == pytest.approx(1 / line["ratio"])
    assert lines[0]["wanted_rate_ratio"] == 0.95
    assert lines[0]["bytes_per_second"] == pytest.approx(SIZE / lines[0]["seconds"])
    shown = bench(*options, "--no-hosts")
    assert shown.exit_code == 0, shown.stderr
    assert "links on loopback, 4MiB a stream" in shown.stdout
    assert "(socket)" in shown.stdout


def test_what_cannot_be_measured_is_refused() -> None:
    refused = bench("--transport", "pigeons")
    assert refused.exit_code == 2
    assert "'pigeons' is not one of tcp, ucx-tcp" in refused.stderr
    odd = bench("--transport", "tcp", "--no-hosts", "--frame", "3KiB")
    assert odd.exit_code == 1
    assert "use powers of two" in odd.stderr


@needs_ucx
def test_rdma_is_refused_where_there_is_none() -> None:
    refused = bench("--transport", "rdma", "--no-hosts", "--size", "1MiB", "--frame", "1MiB")
    assert refused.exit_code == 1
    assert not refused.stdout
    assert "UCX has none of rc" in refused.stderr or "bare-ucx" in refused.stderr
