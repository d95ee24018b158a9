"""One cluster, one view of it, and one browser for all tests that look."""

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from hoplite_ucx.runtime.launch.view_port import listen
from hoplite_ucx.view.serving import View, open_view
from tests.tools.live import TOKEN
from tests.tools.waiting import HANG
from tests.tools.watched import Watched, watched_cluster

CHROMIUM = shutil.which("chromium")


@dataclass
class Looking:
    """A page, and what its console said."""

    page: Page
    console: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(HANG * 1000)
        self.page.on("console", lambda message: self.console.append(message.text))
        self.page.on("pageerror", lambda error: self.console.append(str(error)))


class ServedView:
    """A view on a thread of this process."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._ready: Future[View] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self.view = self._ready.result(HANG)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        try:
            view = await open_view(self._directory, TOKEN, listen("127.0.0.1", 0), "127.0.0.1")
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(view)
        await self._over.wait()
        await view.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(HANG)


@pytest.fixture(scope="session")
def watched() -> Iterator[Watched]:
    with watched_cluster(5) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def served(watched: Watched) -> Iterator[ServedView]:
    view = ServedView(watched.address)
    yield view
    view.close()


@pytest.fixture(scope="module")  # while it is there, this thread cannot run another event loop
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI has Chromium: ci/setup installs it")
        pytest.skip("there is no chromium on this machine: ci/setup installs it as root on Debian")
    with sync_playwright() as playwright:
        # Where everything runs as root, in a container, Chromium's own sandbox cannot be had.
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="module")
def looking(browser: Browser, served: ServedView) -> Iterator[Looking]:
    looking = Looking(browser.new_page(viewport={"width": 1280, "height": 1000}))
    looking.page.goto(served.view.page)
    yield looking
    looking.page.close()
