"""Without a driver, without a device and with a driver that fails: imports work, and the errors say which it is."""

import subprocess
import sys

import pytest

from tests.gpu.made_up.build import Made

_ASK = (
    "from hoplite_ucx.gpu import driver\n"
    "for attempt in range(2):\n"
    "    error = driver.unavailable()\n"
    "print(error.reason, '|', error)\n"
)


def ask(environment: dict[str, str] | None = None) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", _ASK], env=environment, capture_output=True, text=True, check=True)
    reason, detail = done.stdout.split(" | ")
    return reason, detail


def test_no_driver() -> None:
    reason, detail = ask()

    assert reason == "no driver"
    assert "install NVIDIA's driver, or use host memory" in detail


def test_no_device(made_up_gpus: Made) -> None:
    reason, detail = ask(made_up_gpus.environment(GPUS="0"))

    assert reason == "no device"
    assert "check CUDA_VISIBLE_DEVICES" in detail


@pytest.mark.parametrize(("code", "name"), [("803", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), ("999", "an unknown error")])
def test_a_driver_that_fails(code: str, name: str, made_up_gpus: Made) -> None:
    reason, detail = ask(made_up_gpus.environment(GPU_INIT=code))

    assert reason == "broken driver"
    assert f"{name} ({code})" in detail


def test_importing_us_loads_no_library_of_gpus() -> None:
    code = "import hoplite_ucx, sys; print([name for name in ('cupy', 'torch', 'pynvml') if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
