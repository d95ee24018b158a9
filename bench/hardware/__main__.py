"""`python -m hoplite_ucx.bench.hardware serve|run ADDRESS [PORT]`, which `ci/hardware` calls."""

from __future__ import annotations

import argparse
import json
import os
import sys

from hoplite_ucx.bench.hardware.remote_host import serve
from hoplite_ucx.bench.hardware.report import passed, run
from hoplite_ucx.transports.errors import TransportError

_PORT = 7780


def main() -> int:
    parser = argparse.ArgumentParser(prog="ci/hardware", description="Check and measure links between two real hosts.")
    parser.add_argument("role", choices=("serve", "run"), help="serve on one host, run on the other")
    parser.add_argument("address", help="the address of the serving host, as the other host reaches it")
    parser.add_argument("port", nargs="?", type=int, default=_PORT)
    parser.add_argument("--here", help="the address of the running host, if it cannot find it by itself")
    parser.add_argument("--size", type=int, default=256, help="MiB of each measured transfer")
    parser.add_argument("--long", type=int, default=512, help="MiB of each transfer whose process is killed meanwhile")
    parser.add_argument("--only", default="", help="run only checks and tests whose names contain this")
    parser.add_argument("--links", action=argparse.BooleanOptionalAction, default=True, help="check links")
    parser.add_argument(
        "--gpus", action=argparse.BooleanOptionalAction, default=True, help="and GPUs, if both have any"
    )
    given = parser.parse_args()
    token = os.environ.get("HOPLITE_TOKEN", "").encode()
    if not token:
        parser.error("set HOPLITE_TOKEN, the same on both hosts: each starts processes for the other")
    try:
        if given.role == "serve":
            serve(given.address, given.port, token)
            return 0
        sizes = {"size": given.size << 20, "long": given.long << 20}
        parts = {"links": given.links, "gpus": given.gpus}
        report = run(given.address, given.port, token, here=given.here, only=given.only, **sizes, **parts)
    except (AssertionError, OSError, TransportError) as error:
        sys.stderr.write(f"ci/hardware: {error}\n")
        return 1
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0 if passed(report) else 1


if __name__ == "__main__":
    sys.exit(main())
