"""What new users and hostile ones tried in their first hour, and what happens now: a table of findings.

Each topic has a module here (`TOPICS`) with functions marked `@finding(number, tried)`. Such a function does what the
user did, on real processes, raises if the result would surprise anybody, and returns in a few words what happened.
`test_first_hour.py` runs each as a test; `python -m tests.first_hour` prints the table. The details of each finding are
tested beside the code that it is about.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

TOPICS = ("processes", "terminal", "polling", "values", "memory", "interface")


@dataclass(frozen=True, slots=True)
class Finding:
    number: str
    """Such as 2, or 11b for one of several parts."""
    tried: str
    try_it: Callable[[], str]


_found: list[Finding] = []


def finding(number: str, tried: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    def note(try_it: Callable[[], str]) -> Callable[[], str]:
        _found.append(Finding(number, tried, try_it))
        return try_it

    return note


def all_findings() -> list[Finding]:
    """Of all topics, in the order of their numbers."""
    for topic in TOPICS:
        importlib.import_module(f"tests.first_hour.{topic}")
    return sorted(_found, key=lambda found: (int(found.number.rstrip("abcdefghijklmnopqrstuvwxyz")), found.number))
