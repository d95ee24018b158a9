"""Where metrics are scraped: an HTTP port of this process, which asks it for its numbers on every scrape.

Requests have threads of their own, few and with a time limit, so that a scraper that hangs costs one of them for a
while and nothing else. Numbers are collected on the process's loop, where they are written. A port that cannot be had,
or a missing library, is logged in one line: no process depends on its metrics.

Prometheus's library is loaded here, and only here.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from hoplite_ucx.metrics.families import Distribution, Family, Kind, Total

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["Endpoint", "open_endpoint"]

_log = logging.getLogger("hoplite.metrics")

_MOST_REQUESTS = 8
"""At a time; further connections are closed."""
_REQUEST_SECONDS = 5.0
"""For each read and write of a request, and for the process to give its numbers."""
_LOOK_SECONDS = 0.5


def open_endpoint(host: str, port: int, collect: Callable[[], list[Family]]) -> Endpoint | None:
    """Serve what `collect` gives, which is called on this thread's loop. None, and a line in the log, if it cannot be
    served."""
    try:
        return Endpoint(host, port, collect, asyncio.get_running_loop())
    except ImportError as error:
        remedy = "pip install 'hoplite-ucx[metrics]'"
        _log.warning("metrics are not served: %s; %s", error, remedy)
    except OSError as error:
        _log.warning("metrics are not served at %s:%d: %s; choose another metrics.port", host, port, error)
    return None


class Endpoint:
    def __init__(
        self, host: str, port: int, collect: Callable[[], list[Family]], loop: asyncio.AbstractEventLoop
    ) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        registry.register(_Collector(collect, loop))
        self._server = _Server(host, port)
        self._server.set_app(make_wsgi_app(registry))
        self.address = f"{f'[{host}]' if ':' in host else host}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_SECONDS,), name="hoplite-metrics", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{self.address}/metrics"

    def close(self) -> None:
        """It may take as long as the server looks for requests: not on the loop."""
        self._server.shutdown()
        self._server.server_close()


class _Collector:
    """What the library asks, on the thread of a request."""

    def __init__(self, collect: Callable[[], list[Family]], loop: asyncio.AbstractEventLoop) -> None:
        self._collect = collect
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        answer: Future[list[Family]] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._collect())
            except Exception as error:  # the scraper's to hear of
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(ask)
        for family in answer.result(_REQUEST_SECONDS):
            yield _metric(family)


def _metric(family: Family) -> Metric:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        SummaryMetricFamily,
    )

    kinds: dict[Kind, Any] = {
        Kind.COUNTER: CounterMetricFamily,
        Kind.GAUGE: GaugeMetricFamily,
        Kind.HISTOGRAM: HistogramMetricFamily,
        Kind.SUMMARY: SummaryMetricFamily,
    }
    metric = kinds[family.kind](family.name, family.help, labels=family.labels)
    for sample in family.samples:
        match sample.value:
            case Distribution(bounds, counts, total):
                metric.add_metric(sample.labels, _buckets(bounds, counts), total)
            case Total(count, seconds):
                metric.add_metric(sample.labels, count, seconds)
            case value:
                metric.add_metric(sample.labels, value)
    found: Metric = metric
    return found


def _buckets(bounds: tuple[float, ...], counts: tuple[int, ...]) -> list[tuple[str, int]]:
    """As Prometheus counts: each bucket has what is in those before it, too."""
    buckets, below = [], 0
    for bound, count in zip((*map(repr, bounds), "+Inf"), counts, strict=True):
        below += count
        buckets.append((bound, below))
    return buckets


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int) -> None:
        self.address_family, _, _, _, name = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._places = threading.BoundedSemaphore(_MOST_REQUESTS)
        super().__init__((str(name[0]), port), _Handler)

    def server_bind(self) -> None:
        """Without the base class's question to DNS what this host is called."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A scraper that hung up, or sent nothing in time: nobody waits for its answer."""
        _log.debug("a scraper at %s got no answer", client_address, exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_SECONDS

    def log_message(self, *_: object) -> None:
        """A scrape is not worth a line."""

    def get_stderr(self) -> Any:
        """What the library would print of a scraper that hung up."""
        return io.StringIO()

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # it sent nothing in time, or hung up
            super().handle()
