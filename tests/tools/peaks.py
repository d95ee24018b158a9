"""How much memory a process had at most: judged in a process of its own, where nothing else has raised it."""

import subprocess
import sys

_PROGRAM = """
import hoplite_ucx as hoplite

def peak(anew=False):
    if anew:
        with open("/proc/self/clear_refs", "w") as references:
            references.write("5")
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10

size = {size}
with hoplite.connect(memory=2 * size + (64 << 20)) as cluster:
    cluster.put(b"x" * (1 << 20))  # what is loaded and mapped once is no growth
    value = {kind}(b"x" * size)
    before = peak(anew=True)
    ref = cluster.put(value)
    print(peak() - before)
"""


def growth_of_put(kind: str, size: int) -> int:
    """The bytes by which a process grows at most as it puts so many `bytes`, `bytearray` or `memoryview`. The object
    itself, in memory that the process shares with its agent, counts as well."""
    program = _PROGRAM.format(kind=kind, size=size)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout)
