"""The measurement runs. What it measures is judged by people, on a quiet machine."""

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize("arguments", [[], ["--relay"]], ids=["link", "relay"])
def test_measure(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "hoplite_ucx.bench.measures.loopback", "--mib", "8", "--runs", "1", *arguments]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    results = [json.loads(line) for line in printed.splitlines()]
    assert [result["granule"] for result in results] == [64 << 10, 256 << 10, 1 << 20]
    assert all(result["ratio"] > 0 for result in results)
