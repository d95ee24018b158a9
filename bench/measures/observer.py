"""A process on a host that observes a cluster on command: it scrapes its metrics every second, and traces it.

    driver: {"directory": "...", "token": "...", "urls": [...], "trace": "run.json"}, then begin, end, begin, end, …
    this:   ready, then begun, {"scrapes": 3, "spans": 120}, …

In between it says what a directory tells of itself: `ask ADDRESS TOKEN` is answered with its status.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hoplite_ucx.runtime.launch.inspection import directory_status
from hoplite_ucx.runtime.launch.tracing import ClusterTrace

_EVERY = 1.0
_SECONDS = 10.0


class Scraper:
    """All URLs at the same time, as Prometheus may; their text is read and dropped."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._over = threading.Event()
        self.scrapes = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with ThreadPoolExecutor(max(1, len(self._urls))) as pool:
            due = time.monotonic()
            while not self._over.wait(max(0.0, due - time.monotonic())):
                due += _EVERY
                for _ in pool.map(_scrape, self._urls):
                    self.scrapes += 1


def _scrape(url: str) -> None:
    with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
        answer.read()


def main() -> None:
    task: dict[str, Any] = json.loads(sys.stdin.readline())
    _say("ready")
    observing: tuple[Scraper, ClusterTrace] | None = None
    for line in sys.stdin:
        match line.split():
            case ["begin"]:
                trace = ClusterTrace(Path(task["trace"]), task["directory"], task["token"].encode())
                observing = Scraper(task["urls"]), trace
                trace.start()
                _say("begun")
            case ["end"] if observing is not None:
                scraper, trace = observing
                report = trace.finish()
                scraper.end()
                _say(json.dumps({"scrapes": scraper.scrapes, "spans": report.spans, "lost": report.lost}))
            case ["ask", address, token]:
                _say(json.dumps(directory_status(address, token.encode())))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
