"""What this process has started: hoplite in the jobs in which it is the owner."""

from __future__ import annotations

import threading
from typing import NamedTuple

import ray

from hoplite_ucx.ray import plugins, ray_calls, values
from hoplite_ucx.ray.errors import closed
from hoplite_ucx.ray.owner import Owner
from hoplite_ucx.ray.session import session
from hoplite_ucx.ray.terms import NAMESPACE, head_name

_lock = threading.Lock()
_owners: dict[tuple[str, str], Owner] = {}
"""By Ray cluster and job."""


class Settings(NamedTuple):
    arrays: bool
    threshold: int
    memory: int | None
    rate: float | None


def start(wanted: Settings) -> None:
    """Start hoplite in this process's job, or join it where it runs."""
    here = ray_calls.whereabouts()
    with _lock:
        for ended in [place for place, started in _owners.items() if started.is_over]:
            del _owners[ended]
        if here not in _owners and not _has_head(here[1]):
            _owners[here] = Owner(
                memory=wanted.memory, rate=wanted.rate, threshold=wanted.threshold, arrays=wanted.arrays
            )
        terms = _owners[here].terms if here in _owners else session().terms()
    plugins.register()
    if terms.arrays:
        values.register(terms.threshold)


def owner() -> Owner:
    """Of this job, if it is this process."""
    found = _owners.get(ray_calls.whereabouts()) if ray.is_initialized() else None
    if found is None:
        raise closed("hoplite was not started by this process", "ask in the process that called hoplite_ucx.ray.init()")
    return found


def shutdown() -> None:
    """End hoplite in this job, if this process started it."""
    values.unregister()
    if not ray.is_initialized():
        return
    with _lock:
        started = _owners.pop(ray_calls.whereabouts(), None)
        if started is not None:
            started.close()
            session().leave()


def _close_all() -> None:
    with _lock:
        ended = list(_owners.values())
        _owners.clear()
    for each in ended:
        each.close()


ray_calls.before_shutdown(_close_all)


def _has_head(job: str) -> bool:
    try:
        ray_calls.get_actor(head_name(job), namespace=NAMESPACE)
    except ValueError:
        return False
    return True
