"""Takes pictures of the live view with a real browser: `python -m tests.view.take_pictures FOLDER`.

A broadcast with a killed host, a reduce with late sources, an allreduce, an idle cluster and an error; in light, dark
and on a phone. docs/pictures/live-view.png is its `broadcast.png`. Real processes on loopback; the producer writes
slowly, so that there is something to see.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, sync_playwright

import hoplite_ucx as hoplite
from tests.tools.waiting import HANG, eventually
from tests.tools.watched import Watched, watched_cluster
from tests.view.conftest import CHROMIUM, ServedView

MIB = 1 << 20
SIZE = 128 * MIB
SECONDS = 12.0
"""That the broadcast takes."""


@contextmanager
def page_of(address: str) -> Iterator[Page]:
    view = ServedView(address)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.getuid() == 0 else []
        )
        page = browser.new_page(viewport={"width": 1280, "height": 745}, device_scale_factor=1)
        page.goto(view.view.page)
        page.wait_for_selector(".host .meter")
        yield page
        browser.close()
    view.close()


class Writer(threading.Thread):
    """Writes an object at an even pace, while other things happen."""

    def __init__(self, draft: hoplite.Draft) -> None:
        super().__init__(daemon=True)
        self._draft = draft
        self.share = 0.0
        self.start()

    def run(self) -> None:
        began = time.monotonic()
        while self.share < 1.0:
            time.sleep(0.01)
            self.share = min(1.0, (time.monotonic() - began) / SECONDS)
            self._draft.advance(int(SIZE * self.share))
        self._draft.seal()

    def reaches(self, share: float) -> None:
        eventually(lambda: self.share >= share)


def take(page: Page, folder: Path, name: str, *, full: bool = True) -> None:
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=folder / f"{name}.png", full_page=full)
    print(folder / f"{name}.png")  # noqa: T201


def in_all_looks(page: Page, folder: Path, name: str) -> None:
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        take(page, folder, f"{name}-{scheme}")
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(500)
    take(page, folder, f"{name}-phone")
    page.set_viewport_size({"width": 1280, "height": 745})
    page.emulate_media(color_scheme="light")
    page.wait_for_timeout(500)


def broadcast(page: Page, watched: Watched, folder: Path) -> None:
    draft = watched.draft(0, SIZE, "run 7/weights")
    getting = [watched.get(host, draft.ref) for host in range(1, 8)]
    writer = Writer(draft)
    writer.reaches(0.45)
    watched.hosts[4].kill()
    page.wait_for_selector("#incidents .again")
    page.wait_for_timeout(300)
    take(page, folder, "broadcast", full=False)
    in_all_looks(page, folder, "kill")
    for number, thread in enumerate(getting, 1):
        if number != 4:
            thread.join(HANG)


def reduce(page: Page, watched: Watched, folder: Path) -> None:
    alive = [watched.hosts[host].cluster for host in (0, 1, 2, 3, 5, 6, 7)]
    refs = [hoplite.ref_for(f"run 7/gradients of {index}") for index, _ in enumerate(alive)]
    target = alive[0].reduce(refs, op="mean", ref=hoplite.ref_for("run 7/step 1"))
    getting = watched.get(0, target)
    for cluster, ref in list(zip(alive, refs, strict=True))[:4]:
        cluster.put(np.ones(8 * MIB, np.float32), ref=ref)
    page.wait_for_selector('#sources:has-text("4 of 7 sources are in, 3 are not there yet")')
    in_all_looks(page, folder, "reduce-late")
    for cluster, ref in list(zip(alive, refs, strict=True))[4:]:
        cluster.put(np.ones(8 * MIB, np.float32), ref=ref)
    getting.join(HANG)
    page.wait_for_selector('#op-status:has-text("done in")')
    take(page, folder, "reduce-done")


def allreduce(page: Page, watched: Watched, folder: Path) -> None:
    alive = [watched.hosts[host].cluster for host in (0, 1, 2, 3, 5, 6, 7)]
    refs = [cluster.put(np.ones(8 * MIB, np.float32)) for cluster in alive]
    target = alive[0].allreduce(refs, ref=hoplite.ref_for("run 7/allreduce"))
    getting = [watched.get(host, target) for host in (0, 1, 2, 3, 5, 6, 7)]
    for thread in getting:
        thread.join(HANG)
    page.wait_for_selector('#operations button:has-text("run 7/allreduce"):has(.dot.done)')
    page.click('#operations button:has-text("run 7/allreduce")')
    page.wait_for_timeout(4000)
    take(page, folder, "allreduce-replay")
    page.click("#live")


def error(page: Page, watched: Watched, folder: Path) -> None:
    cluster = watched.hosts[0].cluster
    target = cluster.reduce([cluster.put(np.zeros(size * MIB, np.float32)) for size in (1, 2)])
    with suppress(hoplite.InvalidRequestError):
        cluster.get(target, timeout=HANG)
    page.click('#failures details:has-text("cannot be combined")')
    page.wait_for_selector("#failures .story li")
    in_all_looks(page, folder, "error")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with watched_cluster(8) as watched, page_of(watched.address) as page:
        page.wait_for_timeout(1500)
        in_all_looks(page, folder, "idle")
        broadcast(page, watched, folder)
        reduce(page, watched, folder)
        allreduce(page, watched, folder)
        error(page, watched, folder)


if __name__ == "__main__":
    main()
