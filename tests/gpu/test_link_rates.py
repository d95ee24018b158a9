"""`hoplite bench links` with memory of made-up GPUs, beside the same links with memory of the host.

To judge the staged path, on a machine without other work: `pytest -m long -s tests/gpu/test_link_rates.py`.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.made_up.build import Made

needs_ucx = pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'")


def bench(made: Made, *options: str) -> list[dict[str, Any]]:
    """Made-up devices work at once here, at the speed of memory."""
    command = [str(Path(sys.executable).with_name("hoplite")), "bench", "links", "--json", *options]
    environment = made.environment(GPU_DELAY_US="0")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-5_000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@needs_ucx
def test_every_path_of_memory_of_gpus_is_measured(made_up_gpus: Made) -> None:
    names = ("tcp-gpu", "ucx-gpu", "gpu-peers")
    asked = [option for name in names for option in ("--transport", name)]

    results = bench(made_up_gpus, *asked, "--size", "16MiB", "--frame", "1MiB", "--repeat", "1", "--no-hosts")

    assert [result["transport"] for result in results] == ["tcp-gpu", "ucx tcp of a GPU", "gpu-peers"]
    assert all(result["rate_ratio"] > 0 for result in results)


@pytest.mark.long(reason="judges speed")
@pytest.mark.usefixtures("emulated_hosts")
def test_staged_links_reach_nine_tenths_of_links_between_hosts_of_1_gbit(made_up_gpus: Made) -> None:
    options = ("--transport", "tcp-gpu", "--rate", "1gbit", "--size", "128MiB", "--frame", "1MiB", "--repeat", "5")

    results = bench(made_up_gpus, *options)

    for result in results:
        copies = 1 - (result["processor_ratio"] or 1)
        sys.stdout.write(
            f"staged on {result['where']}: {result['rate_ratio']:.2f} of memory of the host; "
            f"copies take {copies:.0%} of the processor time\n"
        )
    (between,) = [result for result in results if result["where"] == "two hosts"]
    assert between["rate_ratio"] >= 0.9
