"""The docstring of every public call says what it raises, and what its timeout covers."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hoplite_ucx
import hoplite_ucx.aio
import hoplite_ucx.dask
import hoplite_ucx.ray

MODULES = (hoplite_ucx, hoplite_ucx.aio, hoplite_ucx.dask, hoplite_ucx.ray)
SEE = re.compile(r"^See `(?:hoplite_ucx|Cluster)\.\w+`")
"""Of an async twin: what it says is with the call of the same name."""


def calls() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions, and the methods of public classes."""
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value):
                for each, method in inspect.getmembers(value, inspect.isfunction):
                    if not each.startswith("_") and method.__module__.startswith("hoplite_ucx"):
                        yield f"{module.__name__}.{name}.{each}", method
            else:
                yield f"{module.__name__}.{name}", value


CALLS = dict(calls())
QUIET = {"hoplite_ucx.ObjectRef.hex", "hoplite_ucx.dask.Shared.copy"}
"""One that cannot fail and says so by its name, and one that Dask calls."""


@pytest.mark.parametrize("name", sorted(set(CALLS) - QUIET))
def test_a_docstring_says_what_the_call_raises(name: str) -> None:
    text = inspect.getdoc(CALLS[name]) or ""
    if SEE.match(text):
        return
    assert re.search(r"\braises?\b|\bHarmless\b", text, re.IGNORECASE), text
    if "timeout" in inspect.signature(CALLS[name]).parameters:
        assert "timeout" in text, text


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_attribute_has_a_docstring(module: Any) -> None:
    missing = [
        f"{name}.{each}"
        for name in module.__all__
        if inspect.isclass(value := getattr(module, name))
        for each, member in inspect.getmembers(value, lambda member: isinstance(member, property))
        if not each.startswith("_") and not member.__doc__ and member.fget.__module__.startswith("hoplite_ucx")
    ]
    assert not missing
