"""A worker on a host of a test: puts, gets and reduces as it is told, and says what came of it. See `hosts.Worker`."""

import json
import sys
import threading
import time
from typing import Any

import numpy as np

import hoplite_ucx as hoplite
from hoplite_ucx.runtime.launch.inspection import local_agents

_LOOK_SECONDS = 0.01


def data(seed: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def numbers(seed: int, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(seed).integers(0, 1000, size // 8)


def received() -> int:
    return sum(
        link["bytes"] for agent in local_agents().status for link in agent["links"] if link["side"] == "receiving"
    )


def watched_get(name: str, seed: int, size: int, tell_at: int) -> dict[str, Any]:
    """Gets it, and says `{"at": …}` once, when so much of it has come; then when bytes came, and when none did."""
    box: dict[str, Any] = {}

    def get() -> None:
        box["value"] = hoplite.get(hoplite.ref_for(name), timeout=100)

    base = last = received()
    began = moved = time.monotonic()
    longest = (0.0, began)
    told = False
    thread = threading.Thread(target=get)
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
        now, at = time.monotonic(), received()
        if at > last:
            if told:
                longest = max(longest, (now - moved, moved))
            moved = now
        last = at  # less, when a link has ended: what it had carried is not counted any more
        if not told and at - base >= tell_at:
            told, moved = True, now
            say({"at": at - base})
    return {
        "right": bool(np.array_equal(box.get("value"), data(seed, size))),
        "seconds": round(time.monotonic() - began, 3),
        "longest_gap_seconds": round(longest[0], 3),
    }


def do(step: dict[str, Any]) -> Any:
    match step.pop("do"):
        case "put":
            hoplite.put(data(step["seed"], step["size"]), ref=hoplite.ref_for(step["name"]))
            return True
        case "put_numbers":
            hoplite.put(numbers(step["seed"], step["size"]), ref=hoplite.ref_for(step["name"]))
            return True
        case "reduce":
            refs = [hoplite.ref_for(name) for name in step["names"]]
            hoplite.reduce(refs, ref=hoplite.ref_for(step["into"]))
            return True
        case "get":
            began = time.monotonic()
            value = hoplite.get(hoplite.ref_for(step["name"]), timeout=100)
            wanted = data(step["seed"], step["size"])
            return {"right": bool(np.array_equal(value, wanted)), "seconds": round(time.monotonic() - began, 3)}
        case "get_sum":
            value = hoplite.get(hoplite.ref_for(step["name"]), timeout=100)
            return bool(np.array_equal(value, sum(numbers(seed, step["size"]) for seed in step["seeds"])))
        case "watched_get":
            return watched_get(**step)
        case other:
            raise ValueError(f"{other!r} is not a step")


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 (it is how the test hears it)


def main() -> None:
    hoplite.init(sys.argv[1])
    say("ready")
    for line in sys.stdin:
        say(do(json.loads(line)))


if __name__ == "__main__":
    main()
