"""Do something as soon as a module is loaded, and do not load it for that: torch alone takes seconds, in every worker.

A module that is loaded already counts at once. What is done must not raise: it would break somebody else's import.
"""

from __future__ import annotations

import importlib.abc
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["when_loaded"]

_log = logging.getLogger("hoplite.ray")
_lock = threading.RLock()
_wanted: dict[str, list[Callable[[], None]]] = {}


def when_loaded(module: str, action: Callable[[], None]) -> None:
    with _lock:
        loaded = sys.modules.get(module)
        if loaded is None:
            _wanted.setdefault(module, []).append(action)
            if not any(isinstance(each, _Finder) for each in sys.meta_path):
                sys.meta_path.insert(0, _Finder())
            return
    if _is_loading(loaded):  # by another thread, most likely, for which an import waits
        threading.Thread(target=_load_and_do, args=(module, action), daemon=True).start()
        return
    _do(action)


def _is_loading(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


def _load_and_do(module: str, action: Callable[[], None]) -> None:
    importlib.import_module(module)
    _do(action)


def _do(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception:
        _log.exception("what was to be done after an import failed")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what others find, with a loader that has an end of its own."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _wanted:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with _lock:
            actions = _wanted.pop(module.__name__, [])
        for action in actions:
            _do(action)
