"""The example of the manual runs, and what it prints is right."""

import re
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "ray_parameter_server.py"


def test_the_loss_goes_down(ray_cluster: Any) -> None:
    run = f"import runpy, sys; sys.argv[0] = 'x'; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", ray_cluster.run(run, ray_cluster.address))]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2
