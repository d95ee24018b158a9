"""A made-up `ucp` with the calls of ucx-py 0.45 that `ucx_py` makes, on top of the real ucxx.

It shows that the calls are made and that what they return is understood; it shows nothing of the real ucx-py.
"""

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hoplite_ucx.transports.ucx.library import Library


class UCXBaseException(Exception):  # noqa: N818 (ucx-py calls it so)
    pass


def install(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make it importable; returns the names of the calls, as they come."""
    real = Library()
    calls: list[str] = []

    class UCXContext:
        def __init__(self, options: dict[str, str], features: tuple[str, ...]) -> None:
            calls.append("UCXContext")
            assert features == ("tag", "wakeup")
            self.real = real.context(options)

        def info(self) -> str:
            return str(self.real.info)

    class UCXWorker:
        def __init__(self, context: UCXContext) -> None:
            self.real = real.worker(context.real)
            self.posted: list[tuple[Any, Any]] = []

        def get_address(self) -> bytes:
            return bytes(self.real.address.tobytes())

        def init_blocking_progress_mode(self) -> int:
            return os.dup(self.real.epoll_file_descriptor)

        def arm(self) -> bool:
            return bool(self.real.arm())

        def progress(self) -> None:
            self.real.progress()
            over = [(request, cb_func) for request, cb_func in self.posted if request.completed]
            self.posted = [each for each in self.posted if each not in over]
            for request, cb_func in over:
                try:
                    request.check_error()
                except real.error as error:
                    cb_func(request, UCXBaseException(str(error)))
                else:
                    cb_func(request, None)

        def post(self, request: Any, cb_func: Any) -> Any:
            self.posted.append((request, cb_func))
            return request

    class UCXEndpoint:
        def __init__(self, worker: UCXWorker, address: bytes, error_handling: bool) -> None:
            self.worker = worker
            self.real = real.endpoint(worker.real, address, to_peer=error_handling)

        @classmethod
        def create_from_worker_address(cls, *arguments: Any) -> Any:
            calls.append("UCXEndpoint")
            return cls(*arguments)

        def close(self) -> None:
            calls.append("close")
            self.real.close_blocking(period=100_000_000, max_attempts=1)

    def tag_send_nb(ep: UCXEndpoint, buffer: Any, nbytes: int, tag: int, cb_func: Any) -> Any:
        calls.append("tag_send_nb")
        assert nbytes == buffer.nbytes
        request = ep.real.tag_send(buffer, real.tag(tag))
        return None if request.completed else ep.worker.post(request, cb_func)

    def tag_recv_nb(worker: UCXWorker, buffer: Any, nbytes: int, tag: int, cb_func: Any) -> Any:
        calls.append("tag_recv_nb")
        assert nbytes == buffer.nbytes
        return worker.post(worker.real.tag_recv(buffer, real.tag(tag), real.whole_tag), cb_func)

    api = {
        "Feature": SimpleNamespace(TAG="tag", WAKEUP="wakeup"),
        "UCXAddress": SimpleNamespace(from_buffer=bytes),
        "UCXContext": UCXContext,
        "UCXWorker": UCXWorker,
        "UCXEndpoint": UCXEndpoint,
        "get_ucx_version": lambda: real.version,
        "tag_send_nb": tag_send_nb,
        "tag_recv_nb": tag_recv_nb,
    }
    modules: dict[str, dict[str, Any]] = {
        "ucp": {},
        "ucp._libs": {},
        "ucp._libs.ucx_api": api,
        "ucp._libs.arr": {"Array": real.array},
        "ucp._libs.exceptions": {"UCXBaseException": UCXBaseException},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    return calls
