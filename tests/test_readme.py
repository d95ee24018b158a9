"""The README's program does what the README says."""

import json
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_example_runs(tmp_path: Path) -> None:
    [program] = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(program)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    values, contributors = ran.stdout.splitlines()
    numbers = json.loads(contributors)
    assert len(set(numbers)) == 3
    assert values.split()[0] == f"[{sum(numbers)}."
