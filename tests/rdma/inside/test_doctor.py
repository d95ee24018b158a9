"""`hoplite doctor` where there is RDMA: what it says is what an agent does."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hoplite_ucx.cli import app

HOPLITE = str(Path(sys.executable).with_name("hoplite"))
NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


def doctor(*before: str, **variables: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [*before, HOPLITE, "doctor", "--json"],
        env={**os.environ, "HOME": "/dev/shm", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def doctor_here(**variables: str) -> tuple[int, dict[str, Any]]:
    """In this process, which has loaded UCX: a Python that loads it takes a minute in software."""
    done = CliRunner().invoke(app, ["doctor", "--json"], env=variables)
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("run", "variable"),
    [
        pytest.param(doctor_here, "HOPLITE_LINKS_REQUIRE", marks=pytest.mark.tier("quick")),
        pytest.param(doctor_here, "HOPLITE_LINKS_TRANSPORT", marks=pytest.mark.tier("quick")),
        pytest.param(doctor, "HOPLITE_LINKS_REQUIRE", marks=pytest.mark.tier("default")),
    ],
    ids=["required", "chosen", "as a command"],
)
def test_rdma_on_named_devices_starts(run: Callable[..., tuple[int, dict[str, Any]]], variable: str) -> None:
    status, report = run(**{variable: "rdma", "HOPLITE_UCX_NET_DEVICES": "rxe0:1"})
    assert (status, report["configuration_error"], report["problems"]) == (0, None, [])
    assert report["rdma"]
    assert [device["name"] for device in report["devices"]] == ["rxe0"]
    assert {"rc_verbs/rxe0:1", "ud_verbs/rxe0:1"} <= set(report["ucx"]["devices"])


@pytest.mark.tier("default")
@pytest.mark.parametrize(("limit", "enough"), [(8 << 20, False), (255 << 20, False), (256 << 20, True)])
def test_lockable_memory(limit: int, enough: bool) -> None:
    who = ["prlimit", f"--memlock={limit}:{limit}", *NOBODY]
    status, report = doctor(*who)
    assert status == 0
    assert report["rdma"] is enough
    assert any(f"only {limit} bytes may be locked" in found["problem"] for found in report["problems"]) is not enough
    status, report = doctor(*who, HOPLITE_LINKS_REQUIRE="rdma")
    assert status == (0 if enough else 1)


@pytest.fixture
def port_down() -> Iterator[None]:
    subprocess.run(["ip", "link", "set", "rdma0", "down"], check=True)
    yield
    subprocess.run(["ip", "link", "set", "rdma0", "up"], check=True)


@pytest.mark.tier("default")
@pytest.mark.usefixtures("port_down")
def test_a_device_without_an_active_port() -> None:
    status, report = doctor()
    assert (status, report["rdma"]) == (0, False)
    assert any("port 1 of rxe0 is down" in found["problem"] for found in report["problems"])
    assert doctor(HOPLITE_LINKS_REQUIRE="rdma")[0] == 1
