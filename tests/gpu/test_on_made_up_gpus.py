"""What uses a CUDA device works on made-up ones: each file of tests/gpu/device, in a process that has such devices."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.made_up.build import Made

_DEVICE = Path(__file__).parent / "device"
_SECONDS = 600

_SLOW = {"GPU_DELAY_US": "5000"}
_LAZY = {"GPU_DELAY_US": "lazy"}  # not with UCX, which waits for a device that works by itself
_NO_PEERS = {"GPU_PEERS": "0"}
_UCX = {"HOPLITE_LINKS_TRANSPORT": "ucx", "HOPLITE_UCX_TLS": "tcp,cuda_copy"}
_SETTINGS: dict[str, tuple[dict[str, str], ...]] = {
    "test_api.py": ({}, _LAZY),
    "test_driver.py": ({}, _LAZY),
    "test_reductions.py": ({}, _SLOW, _LAZY | _NO_PEERS, _UCX),
    "test_segments.py": ({}, _LAZY),
    "test_store.py": ({}, _SLOW, _LAZY | _NO_PEERS, _UCX),
    "test_streams.py": ({}, _SLOW),
    "test_cupy_kernels.py": ({},),
    "test_topology.py": ({},),
    "test_torch.py": (_LAZY,),
}


def test_every_file_runs_somewhere() -> None:
    assert {path.name for path in _DEVICE.glob("test_*.py")} == set(_SETTINGS)


@pytest.mark.timeout(_SECONDS)
@pytest.mark.parametrize(
    ("file", "settings"),
    [
        pytest.param(file, one, id="-".join([file.removeprefix("test_").removesuffix(".py"), *one.values()]))
        for file, choices in _SETTINGS.items()
        for one in choices
    ],
)
def test_on_made_up_gpus(file: str, settings: dict[str, str], made_up_gpus: Made) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", str(_DEVICE / file)]
    of_driver = {name: value for name, value in settings.items() if not name.startswith("HOPLITE_")}
    environment = {**made_up_gpus.environment(**of_driver), **settings}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0, f"{done.stdout[:20_000]}\n{done.stderr[-5_000:]}"
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout
