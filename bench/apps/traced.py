"""Runs a program with hoplite as it is, and records what the cluster does from `hoplite_ucx.ray.init` to its end.

    python -m hoplite_ucx.bench.apps.traced JOB MODULE FILE

It tells what the program tells. A trace is taken in a turn of its own, never in one that is timed.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import ExitStack
from typing import Any

import hoplite_ucx.ray as hoplite
from hoplite_ucx.bench.apps.job import Job, end
from hoplite_ucx.ray import launch
from hoplite_ucx.ray.session import session


def main() -> None:
    _, _, module, path = sys.argv
    with ExitStack() as stack:

        def init(**options: Any) -> None:
            launch.init(**options)
            stack.enter_context(session().cluster().trace(path))

        hoplite.init = init
        importlib.import_module(module).main(Job.from_command_line())
    end()


if __name__ == "__main__":
    main()
