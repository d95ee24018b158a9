"""What a report of `ci/hardware` says of itself."""

import pytest

from hoplite_ucx.bench.hardware.report import not_tried, perftest_messages


@pytest.mark.parametrize(
    ("lanes", "rdma", "rails"),
    [
        (["tcp/eth0", "tcp/eth1"], False, False),
        (["rc_verbs/rxe0:1", "ud_verbs/rxe0:1"], True, False),  # two lanes of one rail
        (["rc_mlx5/mlx5_0:1", "rc_mlx5/mlx5_1:1"], True, True),
        (["rc_mlx5/mlx5_0:1", "tcp/eth0"], True, False),
        ([], False, False),
    ],
)
def test_rails_are_devices_and_not_lanes(lanes: list[str], rdma: bool, rails: bool) -> None:
    missing = not_tried(lanes)
    assert any(what.startswith("RDMA: ") for what in missing) is not rdma
    assert ("several RDMA rails" in missing) is not rails


@pytest.mark.parametrize("bytes_per_second", [1e6, 50e6, 1e9, 25e9])
def test_perftest_takes_seconds_on_every_link(bytes_per_second: float) -> None:
    messages = perftest_messages(bytes_per_second)
    assert messages >= 10
    assert messages * (1 << 20) / bytes_per_second == pytest.approx(4, rel=0.1) or messages == 10
