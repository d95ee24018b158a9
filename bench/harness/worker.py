"""A user's process in a live measurement: does the driver's steps, one per line, and reports their results.

    driver: {"do": "get", "refs": [...], "at": 12.5}          worker: {"done": [...]} or {"error": "..."}

Moments are on the clock that all processes of a machine share. A timed step prepares, waits for its moment, makes its
calls and records when they returned; the values are kept and compared later, when all workers are done, in another
step. Arguments: the directory's address and the agent's name; without them, the process only runs busy Python code, for
as long as it lives.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import hoplite_ucx as hoplite
from hoplite_ucx.bench.harness.contents import Array, fill, matches
from hoplite_ucx.runtime.worker import default_cluster

_TIMEOUT = 120.0
_LOOK = 0.002


# --- steps ------------------------------------------------------------------------------------------------------


class Worker:
    def __init__(self) -> None:
        self._kept: list[Array] = []
        self._burning: threading.Event | None = None

    def put(self, ref: str, size: int, seed: int, at: float = 0.0) -> dict[str, float]:
        array = np.empty(size // 4, np.float32)
        fill(array, [seed])
        return _timed(at, lambda: hoplite.put(array, ref=_ref(ref), timeout=_TIMEOUT))

    def create(self, ref: str, size: int, seed: int) -> dict[str, float]:
        def work() -> None:
            draft = hoplite.create(size // 4, np.float32, ref=_ref(ref), timeout=_TIMEOUT)
            fill(draft.array, [seed])
            draft.seal()

        return _timed(0.0, work)

    def get(
        self, refs: list[str], at: float = 0.0, sources: list[str] | None = None, everywhere: bool = False
    ) -> dict[str, float]:
        """Get these; with `sources`, the only one is first asked for as their sum."""
        return _timed(at, lambda: self._get(refs, sources, everywhere))

    def _get(self, refs: list[str], sources: list[str] | None, everywhere: bool) -> None:
        if sources is not None:
            combine = hoplite.allreduce if everywhere else hoplite.reduce
            combine([_ref(source) for source in sources], "sum", ref=_ref(refs[0]), timeout=_TIMEOUT)
        self._kept = hoplite.get([_ref(ref) for ref in refs], timeout=_TIMEOUT)

    def arrive(
        self,
        at: float,
        put: str | None = None,
        size: int = 0,
        seed: int = 0,
        get: str | None = None,
        sources: list[str] | None = None,
        everywhere: bool = False,
    ) -> dict[str, float]:
        """Join an operation at a moment: put an object, then get the result; or one of both."""
        array = np.empty(size // 4, np.float32)
        fill(array, [seed])

        def work() -> None:
            if put is not None:
                hoplite.put(array, ref=_ref(put), timeout=_TIMEOUT)
            if get is not None:
                self._get([get], sources, everywhere)

        return _timed(at, work)

    def check(self, seeds: list[list[int]], size: int) -> None:
        """Compare what was got last: the sums of these seeds, in order."""
        arrays, self._kept = self._kept, []
        if len(arrays) != len(seeds):
            raise ValueError(f"{len(arrays)} objects arrived, not {len(seeds)}")
        for array, summed in zip(arrays, seeds, strict=True):
            if array.nbytes != size or not matches(array, summed):
                raise ValueError(f"a wrong value: {size} bytes of the seeds {summed} were expected")

    def drop(self) -> None:
        self._kept = []

    def delete(self, refs: list[str]) -> None:
        hoplite.delete([_ref(ref) for ref in refs], timeout=_TIMEOUT)

    def put_each(self, count: int, size: int) -> tuple[list[str], list[float]]:
        """One after the other, under names that they are given; those, and how long each took."""
        array = np.zeros(size, np.uint8)
        refs, took = [], []
        for _ in range(count):
            began = time.monotonic()
            ref = hoplite.put(array, timeout=_TIMEOUT)
            took.append(time.monotonic() - began)
            refs.append(ref.binary.hex())
        return refs, took

    def get_each(self, refs: list[str], size: int, moments: list[float] | None = None) -> list[float]:
        """One after the other, at once or each at its moment, since which its seconds count then. They are looked at in
        the end: hosts share processors, and this would be in the way of the others' gets."""
        took, values = [], []
        for ref, moment in zip(map(_ref, refs), moments or [0.0] * len(refs), strict=True):
            _sleep_until(moment)
            began = moment or time.monotonic()
            values.append(hoplite.get(ref, timeout=_TIMEOUT))
            took.append(time.monotonic() - began)
        if any(value.nbytes != size or value.any() for value in values):
            raise ValueError("a wrong value of a small object")
        return took

    def trips(self, puts: list[str], gets: list[str], size: int, seed: int, begins: bool, at: float) -> dict[str, Any]:
        """Round trips with another worker: put one and get the other's answer, or get one and answer it."""
        array = np.empty(size // 4, np.float32)
        fill(array, [seed])
        trips: list[float] = []

        def work() -> None:
            for mine, others in zip(map(_ref, puts), map(_ref, gets), strict=True):
                began = time.monotonic()
                if begins:
                    hoplite.put(array, ref=mine, timeout=_TIMEOUT)
                value = hoplite.get(others, timeout=_TIMEOUT)
                if not begins:
                    hoplite.put(array, ref=mine, timeout=_TIMEOUT)
                trips.append(time.monotonic() - began)
                if not matches(value, [seed]):
                    raise ValueError("a wrong value came back")

        return {**_timed(at, work), "trips": trips}

    def agent(self) -> dict[str, Any]:
        """What this host's agent says of itself."""
        return default_cluster.client().status()

    def watch(self, ref: str, seconds: float, past: float = math.inf) -> list[tuple[float, int, str]]:
        """How this host's agent receives an object, until it is whole or has so many bytes: moments, positions, from
        whom. Nothing is noted while it is received from nobody."""
        seen: list[tuple[float, int, str]] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            told = default_cluster.client().status()
            moment = time.monotonic()
            streams = [stream for stream in told["streams"] if stream["ref"] == ref]
            seen += [(moment, stream["position"], stream["sender"]) for stream in streams]
            phases = [each["phase"] for each in told["largest"] if each["ref"] == ref]
            if (streams and streams[0]["position"] >= past) or "complete" in phases:
                return seen
            time.sleep(_LOOK)
        raise TimeoutError(f"{ref} was not received within {seconds:g} s; it is at {seen[-1:]}")

    def burn(self, go: bool) -> None:
        """Keep this process's interpreter busy, or stop that."""
        if self._burning is not None:
            self._burning.set()
            self._burning = None
        if go:
            self._burning = over = threading.Event()
            threading.Thread(target=_burn, args=(over,), daemon=True).start()

    def traffic(self) -> int:
        """How many bytes this host's interface has taken in."""
        with open("/proc/self/net/dev") as table:
            (line,) = (line for line in table if line.strip().startswith("eth0:"))
        return int(line.split(":")[1].split()[0])


def _burn(over: threading.Event) -> None:
    number = 0
    while not over.is_set():
        for _ in range(10_000):
            number = (number * 31 + 7) % 1_000_003


def _timed(at: float, work: Callable[[], object]) -> dict[str, float]:
    _sleep_until(at)
    used, began = time.process_time(), time.monotonic()
    work()
    done = time.monotonic()
    return {"began": began, "done": done, "processor": time.process_time() - used}


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _ref(name: str) -> hoplite.ObjectRef:
    return hoplite.ObjectRef(bytes.fromhex(name))


def main(address: str, agent: str) -> None:
    hoplite.init(address, agent=agent)
    worker = Worker()
    _say({"done": "ready"})
    for line in sys.stdin:
        step = json.loads(line)
        try:
            _say({"done": getattr(worker, step.pop("do"))(**step)})
        except Exception as error:  # whatever it is, the driver is to know
            _say({"error": f"{type(error).__name__}: {error}"})
    hoplite.shutdown()


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        main(*sys.argv[1:])
    else:
        _burn(threading.Event())
