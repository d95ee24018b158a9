"""The example of the manual runs, and what it prints is right."""

import re
import subprocess
import sys
from pathlib import Path

from tests.tools.waiting import HANG

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "dask_training.py"


def test_the_loss_goes_down() -> None:
    ran = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=2 * HANG, check=False)
    assert ran.returncode == 0, ran.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", ran.stdout)]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2
