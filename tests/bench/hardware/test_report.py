"""What a report of `ci/hardware` says of itself."""

import pytest

from hoplite_ucx.bench.hardware.report import not_tried


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
