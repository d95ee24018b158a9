"""A Ray job that does what it is told, one JSON object per line: rounds of collectives, and small calls.

Its argument says whether it is a plain Ray program, which loads nothing of ours, or one with `hoplite_ucx.ray`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray

from hoplite_ucx.bench.harness.json_lines import say
from hoplite_ucx.bench.ray.plain import Plain


def job(plan: dict[str, Any]) -> Plain:
    if not plan["ours"]:
        return Plain(plan["addresses"])
    from hoplite_ucx.bench.ray.ours import Ours

    return Ours(plan["addresses"], plan["rate"], plan["memory"])


def main() -> None:
    made = job(json.loads(sys.argv[1]))
    say(ray=ray.__version__)
    for line in sys.stdin:
        told = json.loads(line)
        if told.pop("do") == "round":
            say(seconds=made.run(**told))
        else:
            say(calls=made.small(**told))


if __name__ == "__main__":
    main()
