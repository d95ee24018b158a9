"""A user's process in the fault harness: does several steps at the same time, through the public API.

    driver: {"id": 3, "do": "get", "refs": [...], "at": 12.5}    worker: {"id": 3, "done": …} or {"id": 3, "error": …}

Every step runs on a thread of its own, so that the driver may ask how things stand while a get waits. An error is told
with its type, its object and whether the library raised it on purpose. Moments are on the monotonic clock, which all
processes of a machine share. Argument: the directory's address; the token is in the environment.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

import hoplite_ucx as hoplite
from hoplite_ucx.bench.harness.contents import fill, matches
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.runtime.launch.inspection import directory_status
from hoplite_ucx.runtime.launch.tokens import read_token
from hoplite_ucx.runtime.worker import default_cluster

Array = npt.NDArray[np.float32]

_AT_ONCE = 16
_PIECES = 16


class Worker:
    """Its public methods are the steps."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._kept: dict[str, Array] = {}

    def put(self, ref: str, size: int, seed: int, at: float = 0.0, timeout: float = 30.0) -> dict[str, Any]:
        array = np.empty(size // 4, np.float32)
        fill(array, [seed])
        return _timed(at, lambda: hoplite.put(array, ref=_ref(ref), timeout=timeout))

    def write(self, ref: str, size: int, seed: int, seconds: float, at: float = 0.0) -> dict[str, Any]:
        """An object that is made in place, piece by piece: others get what there is of it."""
        array = np.empty(size // 4, np.float32)
        fill(array, [seed])

        def work() -> None:
            draft = hoplite.create(size // 4, np.float32, ref=_ref(ref), timeout=30.0)
            step = -(-len(array) // _PIECES)
            for start in range(0, len(array), step):
                draft.array[start : start + step] = array[start : start + step]
                draft.advance(4 * min(start + step, len(array)))
                time.sleep(seconds / _PIECES)
            draft.seal()

        return _timed(at, work)

    def reserve(self, ref: str, spare: int) -> dict[str, Any]:
        """Fill the store up to `spare` bytes."""
        memory = default_cluster.client().status()["memory"]
        size = memory["limit"] - memory["used"] - spare
        if size <= 0:
            return {"size": 0}
        hoplite.put(np.zeros(size, np.uint8), ref=_ref(ref), timeout=10.0)
        return {"size": size}

    def get(self, refs: list[str], at: float = 0.0, timeout: float = 30.0) -> dict[str, Any]:
        def work() -> None:
            values = hoplite.get([_ref(ref) for ref in refs], timeout=timeout)
            self._kept.update(zip(refs, values, strict=True))

        return _timed(at, work)

    def answer(
        self, question: str, ref: str, size: int, seed: int, seconds: float = 0.0, timeout: float = 30.0
    ) -> dict[str, Any]:
        """A task that needs an object, takes so long, and leaves another one."""
        array = np.empty(size // 4, np.float32)
        fill(array, [seed])

        def work() -> None:
            hoplite.get(_ref(question), timeout=timeout)
            time.sleep(seconds)
            hoplite.put(array, ref=_ref(ref), timeout=timeout)

        return _timed(0.0, work)

    def reduce(
        self, ref: str, sources: list[str], count: int, everywhere: bool, at: float = 0.0, timeout: float = 30.0
    ) -> dict[str, Any]:
        combine = hoplite.allreduce if everywhere else hoplite.reduce
        named = [_ref(source) for source in sources]
        return _timed(at, lambda: combine(named, "sum", count, ref=_ref(ref), timeout=timeout))

    def contributors(self, ref: str, timeout: float = 10.0) -> dict[str, Any]:
        return {"refs": [each.binary.hex() for each in hoplite.contributors(_ref(ref), timeout=timeout)]}

    def check(self, ref: str, size: int, seeds: list[int]) -> dict[str, Any]:
        """Which of these seeds are in what was got, or what is wrong with it.

        Seeds are different powers of two, and the first number of a sum is the sum of its seeds: it says which ones
        went in, and then every other number has to agree.
        """
        array = self._kept.pop(ref)
        if array.nbytes != size:
            return {"wrong": f"{array.nbytes} bytes arrived, not {size}"}
        total = int(array[0])
        inside = [seed for seed in seeds if total & seed]
        if total != sum(inside) or not matches(array, inside):
            return {"wrong": f"its first number is {array[0]}, which is not a sum of whole objects"}
        return {"seeds": inside}

    def drop(self) -> dict[str, Any]:
        self._kept.clear()
        return {}

    def delete(self, refs: list[str], timeout: float = 30.0) -> dict[str, Any]:
        hoplite.delete([_ref(ref) for ref in refs], timeout=timeout)
        return {}

    def look(self) -> dict[str, Any]:
        """The state of this host's agent."""
        status = default_cluster.client().status()
        return {
            "connected": status["connected"],
            "objects": status["objects"],
            "used": status["memory"]["used"],
            "streams": status["streams"],
            "phases": {holding["ref"]: holding["phase"] for holding in status["largest"]},
            "node": status["node"],
            "at": time.monotonic(),
        }

    def history(self, refs: list[str]) -> dict[str, Any]:
        """How the streams of these objects ended."""
        wanted = set(refs)
        told = default_cluster.client().status(history=True)["history"]
        return {"streams": [record for record in told if record["ref"] in wanted or record["into"] in wanted]}

    def cluster(self) -> dict[str, Any]:
        """What the directory says."""
        return directory_status(self._address, read_token())


def _timed(at: float, work: Any) -> dict[str, Any]:
    time.sleep(max(0.0, at - time.monotonic()))
    began = time.monotonic()
    work()
    return {"began": began, "ended": time.monotonic()}


def _ref(name: str) -> hoplite.ObjectRef:
    return hoplite.ObjectRef(bytes.fromhex(name))


def _error(error: Exception) -> dict[str, Any]:
    typed = isinstance(error, HopliteError)
    return {
        "type": type(error).__name__,
        "typed": typed,
        "text": str(error),
        "ref": error.ref.hex() if isinstance(error, HopliteError) and error.ref else None,
        "remedy": error.remedy if isinstance(error, HopliteError) else "",
        "at": time.monotonic(),
    }


def main(address: str) -> None:
    out = threading.Lock()

    def say(answer: dict[str, Any]) -> None:
        with out:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()

    hoplite.init(address)
    worker = Worker(address)

    def run(number: int, do: str, arguments: dict[str, Any]) -> None:
        try:
            say({"id": number, "done": getattr(worker, do)(**arguments)})
        except Exception as error:  # whatever it is, the driver is to know
            say({"id": number, "error": _error(error)})

    pool = ThreadPoolExecutor(_AT_ONCE)
    say({"id": 0, "done": {}})
    for line in sys.stdin:
        step = json.loads(line)
        pool.submit(run, step.pop("id"), step.pop("do"), step)
    os._exit(0)  # whatever is still waiting


if __name__ == "__main__":
    main(sys.argv[1])
