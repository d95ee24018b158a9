"""The user's process on each host of the demo: puts, gets and reduces through the public API, by command.

Commands come as lines of JSON on standard input and are done in order; each is answered by one line on standard output.
A thread also reports how many bytes this host's agent has received from whom, at the requested interval. All
times are of the monotonic clock, which the processes of one machine share. The process ends with its standard input,
whatever it is doing then.

Arrays are different on every host and at every place, and their sums are exact in any order: whole numbers far below
2**24, where float32 ends. So a result can be compared element for element with what it must be.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

import hoplite_ucx as hoplite
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.runtime.worker import default_cluster

Array = npt.NDArray[np.float32]

_BLOCK = 1 << 18
_VALUES = 1000
_PATIENCE = 60.0


def pattern(host: int) -> Array:
    """What a host's array is made of: block number b of it is this plus b."""
    return np.random.default_rng(host).integers(0, _VALUES, _BLOCK).astype(np.float32)


def fill(array: Array, host: int) -> None:
    block = pattern(host)
    for number, start in enumerate(range(0, len(array), _BLOCK)):
        piece = array[start : start + _BLOCK]
        np.add(block[: len(piece)], np.float32(number), out=piece)


def first_wrong(array: Array, hosts: Iterable[int]) -> int | None:
    """Where an array first differs from the sum of these hosts' arrays."""
    blocks = [pattern(host) for host in hosts]
    total: Array = np.sum(blocks, axis=0, dtype=np.float32)
    for number, start in enumerate(range(0, len(array), _BLOCK)):
        piece = array[start : start + _BLOCK]
        wrong = piece != total[: len(piece)] + np.float32(number * len(blocks))
        if wrong.any():
            return start + int(wrong.argmax())
    return None


class Worker:
    def __init__(self) -> None:
        self._drafts: dict[str, hoplite.Draft] = {}
        self._values: dict[str, Array] = {}
        self._out = threading.Lock()
        self._every: float | None = None
        self._closely = (0.0, 0.0)
        self._watch_changed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def say(self, **report: Any) -> None:
        with self._out:
            sys.stdout.write(json.dumps(report) + "\n")
            sys.stdout.flush()

    def run(self, command: dict[str, Any]) -> None:
        do = command.pop("do")
        try:
            self.say(done=do, **getattr(self, f"do_{do}")(**command))
        except HopliteError as error:
            self.say(failed=do, why=str(error))

    def watch(self, every: float | None, seconds: float | None = None) -> None:
        """Look at the agent so often from now on, or only for some seconds."""
        if every is None or seconds is None:
            self._every = every
            self._closely = (0.0, 0.0)
        else:
            self._closely = (every, time.monotonic() + seconds)
        self._watch_changed.set()

    def _watch(self) -> None:
        while True:
            closely, until = self._closely
            if self._watch_changed.wait(closely if time.monotonic() < until else self._every):
                self._watch_changed.clear()
            if self._every is None:
                continue
            try:
                status = default_cluster.client().status()
            except HopliteError:
                return  # the agent is gone, and the next command says so
            received = {link["peer"]: link["bytes"] for link in status["links"] if link["side"] == "receiving"}
            self.say(received=received, streams=status["streams"], at=time.monotonic())

    # --- commands ----------------------------------------------------------------------------------------------

    def do_prepare(self, ref: str, size: int, host: int) -> dict[str, Any]:
        """Fill memory of the store, so that putting it later takes no time."""
        draft = hoplite.create(size // 4, np.float32, ref=_ref(ref))
        fill(draft.array, host)
        self._drafts[ref] = draft
        return {}

    def do_put(self, ref: str, at: float) -> dict[str, Any]:
        _sleep_until(at)
        self._drafts.pop(ref).seal()
        return {"at": time.monotonic()}

    def do_reduce(self, ref: str, sources: list[str], count: int) -> dict[str, Any]:
        hoplite.reduce([_ref(source) for source in sources], "sum", count, ref=_ref(ref), timeout=_PATIENCE)
        return {}

    def do_get(self, ref: str, at: float) -> dict[str, Any]:
        _sleep_until(at)
        self._values[ref] = hoplite.get(_ref(ref), timeout=_PATIENCE)
        return {"at": time.monotonic()}

    def do_contributors(self, ref: str) -> dict[str, Any]:
        found = hoplite.contributors(_ref(ref), timeout=_PATIENCE)
        return {"refs": [each.binary.hex() for each in found]}

    def do_check(self, ref: str, size: int, hosts: list[int]) -> dict[str, Any]:
        """Compare what was got with the sum of these hosts' arrays, and let go of it."""
        value = self._values.pop(ref)
        if value.nbytes != size:
            return {"wrong": f"{value.nbytes} bytes arrived, not {size}"}
        place = first_wrong(value, hosts)
        return {"wrong": None if place is None else f"element {place} is {value[place]}"}

    def do_delete(self, refs: list[str]) -> dict[str, Any]:
        hoplite.delete([_ref(ref) for ref in refs], timeout=_PATIENCE)
        return {}


def _ref(name: str) -> hoplite.ObjectRef:
    return hoplite.ObjectRef(bytes.fromhex(name))


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def main() -> None:
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    hoplite.init()
    worker = Worker()

    def read() -> None:
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "watch":
                worker.watch(command["every"], command.get("seconds"))
            else:
                commands.put(command)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    worker.say(done="start")
    while True:
        worker.run(commands.get())


if __name__ == "__main__":
    main()
