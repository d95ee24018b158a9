"""The loaded UCX, through `ucxx` below its asyncio layer. All calls to it go through here; where only its predecessor
ucx-py is installed, `ucx_py` has the same calls.

`libucx` must be loaded before `ucxx` is imported, so that the UCX of the wheel (or the system's, if the environment
prefers it) is the one that is used, and so that nothing of CUDA is needed on a machine without it. `ucxx` has no
types: what comes from it is `Any`, and this module gives it names.

Tried: ucxx 0.52 with UCX 1.21 and 1.22 over tcp and posix shared memory, with UCX 1.23 over rc and ud of software RDMA
(`ci/rdma`). Never run: dc, cuda, any card.
"""

import ctypes
import functools
import importlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import Any, TypeAlias, cast

from hoplite_ucx.transports.errors import TransportError

__all__ = ["Lane", "Library", "Request", "UcxMissingError", "Worker", "load"]

Request: TypeAlias = Any
"""A transfer under way, with `completed` and `check_error()`. Dropping it before it is completed cancels it."""

Worker: TypeAlias = Any
Endpoint: TypeAlias = Any

OLDEST = (1, 19)
"""What ucxx 0.52 was made for; it refuses older ones by itself."""

_REMEDY = "pip install 'hoplite-ucx[ucx]', or leave UCX out of the configuration"
RESOURCE = re.compile(r"resource\s+\d+\s*:.*?(\w+)/(\S+)\s*$", re.MULTILINE)
_MAX_LANES = 16
_EP_TRANSPORTS = 1 << 3


class UcxMissingError(TransportError):
    """This process has no UCX; the text says why."""


@dataclass(frozen=True, slots=True)
class Lane:
    """What an endpoint really got: a transport of UCX (`tcp`, `posix`, `rc_mlx5`) on a device."""

    transport: str
    device: str


class _Entry(ctypes.Structure):
    _fields_ = (("transport", ctypes.c_char_p), ("device", ctypes.c_char_p))


class _Attributes(ctypes.Structure):
    """`ucp_ep_attr_t`, as far as UCX 1.19 to 1.22 have it; the rest is room for what later ones add."""

    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 32),
        ("local_address", ctypes.c_char * 128),
        ("remote_address", ctypes.c_char * 128),
        ("entries", ctypes.POINTER(_Entry)),
        ("entry_count", ctypes.c_uint),
        ("entry_size", ctypes.c_size_t),
        ("room", ctypes.c_char * 256),
    )


class Library:
    """One per process."""

    def __init__(self) -> None:
        os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")
        os.environ.setdefault("UCX_LOG_FILE", "stderr")  # standard output is for the output of commands
        try:
            self._load()
        except (ImportError, OSError, AttributeError) as error:
            raise UcxMissingError(f"UCX cannot be loaded: {error}", "this process", _REMEDY) from error

    def _load(self) -> None:
        libraries = importlib.import_module("libucx").load_library()
        with _without_dask():
            importlib.import_module("ucxx")
        self._api = importlib.import_module("ucxx._lib.libucxx")
        self.array: Any = importlib.import_module("ucxx._lib.arr").Array
        types = importlib.import_module("ucxx.types")
        self.tag: Any = types.Tag
        self.whole_tag: Any = types.TagMaskFull
        self.error: type[Exception] = self._api.UCXError
        self.version: tuple[int, ...] = tuple(self._api.get_ucx_version())
        self._query: Any = _find(libraries, "ucp_ep_query")

    def context(self, options: dict[str, str]) -> Any:
        return self._api.UCXContext(options, (self._api.Feature.TAG, self._api.Feature.WAKEUP))

    def resources(self, context: Any) -> list[Lane]:
        """What a context can use on this machine."""
        return [Lane(*found) for found in RESOURCE.findall(str(context.info))]

    def worker(self, context: Any) -> Worker:
        worker = self._api.UCXWorker(context, enable_delayed_submission=False, enable_python_future=False)
        worker.init_blocking_progress_mode()
        return worker

    def endpoint(self, worker: Worker, address: bytes, *, to_peer: bool = True) -> Endpoint:
        """To a peer with error handling: only then does closing it end its transfers at once.

        Without it, a worker reaches itself through memory alone, past whatever blocks its other transports.
        """
        there = self._api.UCXAddress.create_from_buffer(address)
        return self._api.UCXEndpoint.create_from_worker_address(worker, there, to_peer)

    def lanes(self, endpoint: Endpoint) -> list[Lane]:
        """The lanes of an endpoint that has sent something; none if this UCX does not tell."""
        if self._query is None:
            return []
        entries = (_Entry * _MAX_LANES)()
        attributes = _Attributes(field_mask=_EP_TRANSPORTS)
        attributes.entries = entries
        attributes.entry_count = _MAX_LANES
        attributes.entry_size = ctypes.sizeof(_Entry)
        if self._query(ctypes.c_void_p(endpoint.handle), ctypes.byref(attributes)) != 0:
            return []
        found = entries[: min(attributes.entry_count, _MAX_LANES)]
        return [Lane(_text(entry.transport), _text(entry.device)) for entry in found]


@functools.cache
def load() -> Library:
    """Raises `UcxMissingError`; a failure is not cached, so every call reports it."""
    if find_spec("ucxx") is None and find_spec("ucp") is not None:
        return cast(Library, importlib.import_module("hoplite_ucx.transports.ucx.ucx_py").UcxPyLibrary())
    return Library()


class _NoDask(MetaPathFinder):
    """Other threads may import it meanwhile."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, *_: object) -> None:
        if name == "dask" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("not needed by ucxx", name=name)


@contextmanager
def _without_dask() -> Iterator[None]:
    """`ucxx` loads all of Dask where it is installed, to print sizes and times; it does without."""
    finder = _NoDask()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _find(libraries: list[Any], name: str) -> Any:
    for library in libraries:
        if library is not None and hasattr(library, name):
            return getattr(library, name)
    return None


def _text(name: bytes | None) -> str:
    return (name or b"").decode(errors="replace")
