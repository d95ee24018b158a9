"""A trainer whose weights change in every step, engines that follow it for a while, and how soon they have what is
newest."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from hoplite_ucx.bench.apps.job import Job, Row

__all__ = ["Arrays", "Had", "Stay", "Trainer", "arrays_of", "load", "module_of", "noted", "rows_of", "stays_of"]

_LAYERS = 4
_FIRST = 2
"""The first version that counts: one before it showed that all engines are up."""

Arrays = dict[str, npt.NDArray[Any]]


def module_of(job: Job) -> nn.Module:
    """Layers of the job's size together."""
    side = max(1, int((job.size / 4 / _LAYERS) ** 0.5))
    return nn.Sequential(*(nn.Linear(side, side, bias=False) for _ in range(_LAYERS)))


class Trainer:
    """The accelerator is a timer; every weight of a version is the version's number."""

    def __init__(self, job: Job) -> None:
        self._module = module_of(job)
        self._seconds = job.compute or 0.0
        self._version = 0

    def step(self) -> dict[str, Any]:
        time.sleep(self._seconds)
        self._version += 1
        with torch.no_grad():
            for parameter in self._module.parameters():
                parameter.fill_(self._version)
        state: dict[str, Any] = self._module.state_dict()
        return state


def arrays_of(state: Mapping[str, Any]) -> Arrays:
    """Plain Ray copies arrays once, but pickles tensors."""
    return {name: weight.numpy() for name, weight in state.items()}


def load(module: nn.Module, arrays: Arrays) -> None:
    for name, weight in module.state_dict().items():
        np.copyto(weight.numpy(), arrays[name])


# --- who follows, from when to when ------------------------------------------------------------------------------


class Stay(msgspec.Struct, frozen=True):
    """An engine joins after a version was published, and leaves when it has another."""

    after: int
    until: int


def stays_of(job: Job) -> list[Stay]:
    """All stay, unless the job has a death: then the first engine leaves half-way, and the last one joins after a
    quarter."""
    engines, last = len(job.nodes) - 1, job.rounds + 1  # the first one is not counted
    stays = [Stay(0, last)] * engines
    if job.kill is not None and engines >= 3:  # one that stays besides, which is killed
        stays[0] = Stay(0, max(2, last // 2))
        stays[-1] = Stay(max(2, last // 4), last)
    return stays


# --- what engines had, and when ----------------------------------------------------------------------------------


class Had(msgspec.Struct, frozen=True):
    """From a moment on, an engine had a version; 0 when it begins to follow without one."""

    engine: int
    pid: int
    version: int
    at: float
    right: bool
    """Whether every weight was the version's."""


def noted(engine: int, version: int, module: nn.Module) -> Had:
    at = time.monotonic()
    right = not version or all(bool(torch.all(weight == version)) for weight in module.state_dict().values())
    return Had(engine, os.getpid(), version, at, right)


def rows_of(published: Mapping[int, float], had: Iterable[Had]) -> Iterator[Row]:
    """For each version: how long until the last engine that was there had it or a newer one, how many had just this
    one, and how many versions they were behind on average until the next one came. For each joining: how long until
    the engine had what was newest."""
    lives = _lives(had)
    ends = [*list(published.values())[1:], None]
    for (version, at), end in zip(published.items(), ends, strict=True):
        there = [life for life in lives if life[0].at <= at]
        waits = [wait for life in there if (wait := _wait(life, version, at)) is not None]
        behind = [found for life in there if end and (found := _behind(life, version, at, end)) is not None]
        yield {
            "round": version - _FIRST,
            "began": at,
            "seconds": max(waits, default=None),
            "workers": len(waits),
            "exactly": sum(any(each.version == version for each in life) for life in there),
            "behind": sum(behind) / len(behind) if behind else None,
            "wrong": sum(not each.right for life in lives for each in life if each.version == version),
        }
    first_of = {life[0].engine: life[0].pid for life in reversed(lives)}
    begun = min(published.values())
    for life in lives:
        if life[0].at > begun and len(life) > 1:
            again = life[0].pid != first_of[life[0].engine]
            took = life[1].at - life[0].at
            yield {"joined": life[0].engine, "again": again, "at": life[1].at, "took": took, "version": life[1].version}


def _lives(had: Iterable[Had]) -> list[list[Had]]:
    """By process, in the order in which they came: an engine that was killed has two lives."""
    found: dict[int, list[Had]] = defaultdict(list)
    for each in sorted(had, key=lambda each: each.at):
        found[each.pid].append(each)
    return list(found.values())


def _wait(life: Sequence[Had], version: int, at: float) -> float | None:
    """None for an engine that left or died before it had the version."""
    return next((each.at - at for each in life if each.version >= version), None)


def _behind(life: Sequence[Had], version: int, begin: float, end: float) -> float | None:
    """The mean over the time between two moments in which the version was the newest one. It counts from an engine's
    first version to its last."""
    area = seconds = 0.0
    for each, following in pairwise(life):
        if each.version:
            part = min(end, following.at) - max(begin, each.at)
            if part > 0:
                area += part * max(0, version - each.version)
                seconds += part
    last = life[-1]
    if last.version >= version and end > last.at:  # it has the newest, and waits for the next
        seconds += end - max(begin, last.at)
    return area / seconds if seconds else None
