"""Which transport a link gets, and the reason that is kept."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from hoplite_ucx.gpu.topology import Gpu, Gpus
from hoplite_ucx.transports.configuration import Configuration, ConfigurationError, load
from hoplite_ucx.transports.detection import LinkHardware, Port, RdmaDevice, UcxBuild
from hoplite_ucx.transports.selection import Selection
from hoplite_ucx.transports.ucx.locked_memory import LEAST

PORT = Port(1, "ACTIVE", "LinkUp", "InfiniBand", 100e9, 1, ("ib0",))
CARDS = (RdmaDevice("mlx5_0", 0, "0000:01:00.0", (PORT,)),)
VERBS = UcxBuild(version="1.22.0", transports=("rc_mlx5", "tcp"))
WHEEL = UcxBuild(version="1.22.0", transports=("posix", "tcp"))

RDMA = LinkHardware(CARDS, VERBS, -1, -1)
CARD_ONLY = LinkHardware(CARDS, WHEEL, -1, -1)
PLAIN = LinkHardware((), WHEEL, -1, -1)
BARE = LinkHardware((), UcxBuild(failure="UCX cannot be loaded"), -1, -1)

HOST = "198.18.1.2:7777"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def select(machine: LinkHardware, text: str = "", tmp_path: Path | None = None, **variables: str) -> Selection:
    path = None
    if tmp_path is not None:
        path = tmp_path / "hoplite.toml"
        path.write_text(text)
    return Selection(load(path, variables), machine, Clock())


@pytest.mark.parametrize(
    ("machine", "transport", "reason"),
    [
        (RDMA, "ucx", "the fastest: ucx rc: 12.50 GB/s after 0.02 ms, supposed; tcp: 1.00 GB/s"),
        (CARD_ONLY, "tcp", "built without RDMA"),
        (PLAIN, "tcp", "no RDMA device"),
        (BARE, "tcp", "no UCX here"),
    ],
)
def test_auto(machine: LinkHardware, transport: str, reason: str) -> None:
    choice = select(machine).choose(1, HOST)
    assert choice.transport == transport
    assert reason in choice.reason
    assert choice.ucx is None or choice.ucx.tls == ("rc",)


def test_ucx_over_tcp_is_used_if_told_to() -> None:
    choice = select(PLAIN, HOPLITE_LINKS_TRANSPORT="ucx").choose(1, HOST)
    assert choice.ucx is not None
    assert choice.ucx.tls == ("tcp",)
    assert "HOPLITE_LINKS_TRANSPORT" in choice.reason


@pytest.mark.parametrize("machine", [BARE, PLAIN, CARD_ONLY])
def test_what_cannot_be_had_falls_back_and_says_so(machine: LinkHardware) -> None:
    choice = select(machine, HOPLITE_LINKS_TRANSPORT="rdma").choose(1, HOST)
    assert choice.transport == "tcp"
    assert choice.reason.endswith("tcp instead")


def test_the_first_rule_that_fits_decides(tmp_path: Path) -> None:
    text = """
    [links]
    transport = "tcp"
    [[links.rules]]
    subnet = "198.18.0.0/16"
    transport = "ucx"
    tls = ["posix"]
    [[links.rules]]
    host = "198.18.*"
    transport = "tcp"
    [[links.rules]]
    device = "mlx5_0"
    transport = "rdma"
    """
    selection = select(RDMA, text, tmp_path)
    first = selection.choose(1, HOST)
    assert first.ucx is not None
    assert first.ucx.tls == ("posix",)
    assert "rule 1" in first.reason
    third = selection.choose(2, "198.19.0.1:7777")
    assert third.ucx is not None
    assert third.ucx.tls == ("rc",)
    assert "rule 3" in third.reason
    assert select(PLAIN, text, tmp_path).choose(2, "[::1]:7777").transport == "tcp"
    assert [settings.tls for settings in selection.chosen_settings()] == [("posix",), ("rc",)]
    assert [settings.tls for settings in selection.ucx_settings()] == [("posix",), ("rc",), ("tcp",)]


def test_a_transport_that_failed_is_not_tried_for_a_while() -> None:
    clock = Clock()
    selection = Selection(load(environment={"HOPLITE_LINKS_TRANSPORT": "ucx"}), PLAIN, clock)
    selection.failed(1, OSError("it broke"))
    assert "it broke" in selection.choose(1, HOST).reason
    assert selection.choose(1, HOST).transport == "tcp"
    assert selection.choose(2, HOST).transport == "ucx"
    clock.now += 31
    assert selection.choose(1, HOST).transport == "ucx"


def pause(selection: Selection, clock: Clock) -> float:
    """How long it does without UCX after a failure."""
    began = clock.now
    while selection.choose(1, HOST).transport == "tcp":
        clock.now += 1
    return clock.now - began


def test_a_network_that_stays_broken_is_tried_ever_more_seldom_and_one_that_is_well_again_is_used() -> None:
    """Each try costs the stream that meets it a second or two."""
    clock = Clock()
    selection = Selection(load(environment={}), RDMA, clock)
    pauses = []
    for _ in range(6):
        for _ in range(3):  # its streams, and both ways to notice, tell of one break
            selection.failed(1, OSError("it broke"))
        pauses.append(pause(selection, clock))
    assert pauses == [30, 60, 120, 240, 480, 480]
    assert selection.choose(1, HOST).transport == "ucx", "auto comes back to RDMA"
    selection.worked(1)
    selection.failed(1, OSError("it broke"))
    assert pause(selection, clock) == 30


def long_streams(selection: Selection, clock: Clock, rates: dict[str, float], count: int = 1) -> list[str]:
    """Streams of 64 MiB, each at the rate of whatever transport it gets; which they got."""
    used = []
    for _ in range(count):
        clock.now += 1
        choice = selection.choose(1, HOST, 64 << 20)
        selection.measured(1, choice.ucx, (64 << 20, (64 << 20) / rates[choice.transport], 1e-3))
        used.append(choice.transport)
    return used


def fastest(machine: LinkHardware = PLAIN) -> tuple[Selection, Clock]:
    clock = Clock()
    return Selection(load(environment={"HOPLITE_LINKS_TRANSPORT": "fastest"}), machine, clock), clock


@pytest.mark.parametrize(("ucx", "winner"), [(3e9, "ucx"), (1e9, "tcp"), (2.1e9, "tcp")])
def test_the_fastest_is_what_was_measured_so(ucx: float, winner: str) -> None:
    selection, clock = fastest()
    assert selection.choose(1, HOST).transport == "tcp"  # short, and nothing is known
    rates = {"ucx": ucx, "tcp": 2e9}
    first = long_streams(selection, clock, rates, 6)
    assert sorted(first) == ["tcp"] * 3 + ["ucx"] * 3
    assert set(long_streams(selection, clock, rates, 20)) == {winner}
    choice = selection.choose(1, HOST)
    assert "tcp: 2.00 GB/s after 1.00 ms, measured" in choice.reason
    assert f"ucx tcp: {ucx / 1e9:.2f} GB/s after 1.00 ms, measured" in choice.reason
    assert "supposed" in selection.choose(2, HOST).reason, "another link is another matter"


def test_a_link_never_swings() -> None:
    """Rates that go up and down by a fifth move nothing; a clear change moves it once."""
    selection, clock = fastest()
    long_streams(selection, clock, {"ucx": 2e9, "tcp": 2e9}, 6)
    used = [
        transport
        for number in range(100)
        for transport in long_streams(selection, clock, {"ucx": 2e9 * (1.2 if number % 2 else 0.8), "tcp": 2e9})
    ]
    assert len(set(used)) == 1
    (settled,) = set(used)
    other = {"ucx": "tcp", "tcp": "ucx"}[settled]
    clock.now += 31
    used = long_streams(selection, clock, {settled: 0.5e9, other: 2e9}, 50)
    changes = [number for number in range(1, 50) if used[number] != used[number - 1]]
    assert len(changes) == 1
    assert used[-1] == other
    back = long_streams(selection, clock, {settled: 2e9, other: 0.1e9}, 60)
    assert back.count(other) >= 8, "what is new gets its time"
    assert sum(one != two for one, two in itertools.pairwise(back)) <= 2


def test_short_streams_measure_nothing() -> None:
    selection, _ = fastest()
    for _ in range(10):
        selection.measured(1, None, (1 << 20, 1e-6, 0.0))
        selection.measured(1, None, (64 << 20, 0.0, 0.0))
        assert "measuring ucx tcp on this link, stream 1 of 3" in selection.choose(1, HOST, 64 << 20).reason


def test_rdma_is_left_for_a_tcp_that_was_measured_and_for_no_other() -> None:
    clock = Clock()
    selection = Selection(load(environment={}), RDMA, clock)
    assert long_streams(selection, clock, {"ucx": 0.2e9}, 10) == ["ucx"] * 10, "nobody measured tcp"
    selection.failed(1, OSError("it broke"))
    assert long_streams(selection, clock, {"tcp": 2e9}, 3) == ["tcp"] * 3
    clock.now += 31
    assert selection.choose(1, HOST, 64 << 20).transport == "tcp"
    assert "ucx rc: 0.20 GB/s" in selection.choose(1, HOST).reason


@pytest.mark.parametrize("key", ["REQUIRE", "TRANSPORT"])
def test_named_rdma_devices_start_nothing_but_rdma(key: str) -> None:
    """UCX's own tcp has none of these devices, and no rule asks for it."""
    named = {f"HOPLITE_LINKS_{key}": "rdma", "HOPLITE_UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1"}
    for variables in (named, {"HOPLITE_UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1"}):
        selection = select(RDMA, **variables)
        assert [settings.tls for settings in selection.chosen_settings()] == [("rc",)]
        assert selection.choose(1, HOST).ucx in selection.chosen_settings()
    assert select(PLAIN).chosen_settings() == []
    assert [settings.tls for settings in fastest(RDMA)[0].chosen_settings()] == [("rc",), ("tcp",)]


def test_rdma_that_does_not_start_is_done_without_unless_it_was_named() -> None:
    selection = select(RDMA)
    (rdma,) = selection.chosen_settings()
    assert selection.does_not_start(rdma, OSError("no queue pairs"))
    choice = selection.choose(1, HOST)
    assert choice.transport == "tcp"
    assert "no queue pairs" in choice.reason
    for key in ("REQUIRE", "TRANSPORT"):
        named = select(RDMA, **{f"HOPLITE_LINKS_{key}": "rdma"})
        assert not named.does_not_start(rdma, OSError("no queue pairs"))


def test_too_little_lockable_memory_is_no_rdma() -> None:
    little = LinkHardware(CARDS, VERBS, -1, 8 << 20)
    choice = select(little).choose(1, HOST)
    assert choice.transport == "tcp"
    assert "only 8388608 bytes may be locked" in choice.reason
    with pytest.raises(ConfigurationError, match="only 8388608 bytes may be locked") as refused:
        select(little, HOPLITE_LINKS_REQUIRE="rdma")
    assert "ulimit -l unlimited" in refused.value.remedy
    assert select(LinkHardware(CARDS, VERBS, -1, LEAST)).choose(1, HOST).transport == "ucx"


def test_a_reason_names_each_variable_once() -> None:
    choice = select(PLAIN, HOPLITE_LINKS_TRANSPORT="ucx", HOPLITE_UCX_TLS="tcp", HOPLITE_UCX_SEGMENT="2MiB")
    reason = choice.choose(1, HOST).reason
    assert [reason.count(f"HOPLITE_{name}") for name in ("LINKS_TRANSPORT", "UCX_TLS", "UCX_SEGMENT")] == [1, 1, 1]


def test_a_failure_comes_before_what_was_measured() -> None:
    selection, clock = fastest()
    long_streams(selection, clock, {"ucx": 4e9, "tcp": 1e9}, 40)
    assert selection.choose(1, HOST).transport == "ucx"
    selection.failed(1, OSError("it broke"))
    assert selection.choose(1, HOST, 64 << 20).transport == "tcp"
    clock.now += 31
    assert selection.choose(1, HOST).transport == "ucx"


def test_the_fastest_without_ucx_is_tcp() -> None:
    selection, _ = fastest(BARE)
    choice = selection.choose(1, HOST, 64 << 20)
    assert choice.transport == "tcp"
    assert "no UCX here" in choice.reason
    assert not selection.compares


@pytest.mark.parametrize(("machine", "remedy"), [(BARE, "pip install"), (PLAIN, "doctor"), (CARD_ONLY, "verbs")])
def test_what_is_required_and_missing_is_refused(machine: LinkHardware, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=r"links\.require: 'rdma' is not available") as refused:
        select(machine, HOPLITE_LINKS_REQUIRE="rdma")
    assert remedy in refused.value.remedy


def test_what_is_required_is_never_replaced() -> None:
    selection = select(RDMA, HOPLITE_LINKS_REQUIRE="rdma")
    selection.failed(1, OSError("it broke"))
    choice = selection.choose(1, HOST)
    assert choice.transport == "ucx"
    assert choice.fixed
    assert select(RDMA, HOPLITE_LINKS_REQUIRE="tcp").choose(1, HOST).transport == "tcp"
    assert not select(RDMA, HOPLITE_LINKS_REQUIRE="tcp").has_ucx


GPU = Gpu("GPU-1", "H100", "0000:02:00.0", 80 << 30, 0, {}, 0, ())
WITH_CUDA = UcxBuild(version="1.22.0", transports=("cuda_copy", "rc_mlx5", "tcp"))


def with_gpu(ucx: UcxBuild, far: str = "PIX", *, peer_memory: bool = True, rate: float = 100e9) -> LinkHardware:
    cards = (replace(CARDS[0], ports=(replace(PORT, rate=rate),)),)
    gpus = Gpus((GPU,), peer_memory=peer_memory)
    return LinkHardware(cards, ucx, -1, -1, gpus=gpus, nearest_cards=((GPU.uuid, "mlx5_0", far),))


@pytest.mark.parametrize(
    ("machine", "path", "rate"),
    [
        (with_gpu(WITH_CUDA), "direct: GPUDirect by mlx5_0 (PIX)", "12.50"),
        (with_gpu(WITH_CUDA, "SYS"), "direct: GPUDirect by mlx5_0 (SYS)", "6.25"),
        (with_gpu(WITH_CUDA, peer_memory=False), "direct: copied by UCX, since cards do not reach GPUs here", "12.50"),
        (with_gpu(VERBS), "staged: UCX 1.22.0 has no CUDA", "5.56"),
    ],
)
def test_how_memory_of_gpus_travels_is_known_before_a_stream_starts(
    machine: LinkHardware, path: str, rate: str
) -> None:
    selection = select(machine)
    choice = selection.choose(1, HOST, to_device=True)
    assert choice.transport == "ucx"
    assert choice.reason.endswith(f"; memory of GPUs {path}")
    assert f"ucx rc: {rate} GB/s" in choice.reason
    assert selection.device_paths() == {"ucx rc": path, "tcp": "staged: sockets take memory of the host"}
    assert "GPUs" not in selection.choose(1, HOST).reason, "the host's memory is another matter"


def test_a_far_and_slow_card_is_left_for_sockets_by_streams_into_gpus_alone() -> None:
    """The card is a little faster than what sockets are taken for, but not for a GPU behind another processor."""
    selection = select(with_gpu(WITH_CUDA, "SYS", rate=10e9))
    assert selection.choose(1, HOST).transport == "ucx"
    assert selection.choose(1, HOST, to_device=True).transport == "tcp"
    near = select(with_gpu(WITH_CUDA, rate=10e9))
    assert near.choose(1, HOST, to_device=True).transport == "ucx"


def test_streams_into_gpus_are_measured_apart() -> None:
    clock = Clock()
    environment = {"HOPLITE_LINKS_TRANSPORT": "fastest", "HOPLITE_UCX_TLS": "tcp"}
    selection = Selection(load(environment=environment), with_gpu(WHEEL), clock)
    for to_device, rates in ((False, {"ucx": 1e9, "tcp": 3e9}), (True, {"ucx": 3e9, "tcp": 1e9})):
        for _ in range(40):
            clock.now += 1
            choice = selection.choose(1, HOST, 64 << 20, to_device=to_device)
            sample = (64 << 20, (64 << 20) / rates[choice.transport], 1e-3)
            selection.measured(1, choice.ucx, sample, to_device=to_device)
    assert selection.choose(1, HOST).transport == "tcp"
    assert selection.choose(1, HOST, to_device=True).transport == "ucx"


def test_without_gpus_no_path_is_told() -> None:
    assert select(RDMA).device_paths() == {}


def test_bad_addresses_are_refused() -> None:
    with pytest.raises(ValueError, match="not an address"):
        Selection(Configuration(), PLAIN, Clock()).choose(1, "nowhere")
