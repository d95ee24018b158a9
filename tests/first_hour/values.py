"""What a value is after its journey."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hoplite_ucx as hoplite
from hoplite_ucx.errors import InvalidRequestError
from tests.first_hour.findings import finding

_SECONDS = 60
"""Ends a hang; nothing here takes a second."""


@contextmanager
def _cluster() -> Iterator[None]:
    hoplite.init(memory=64 << 20)
    try:
        yield
    finally:
        hoplite.shutdown()


def _refused(call: Any, *given: Any) -> str:
    """The text of the refusal."""
    try:
        result = call(*given)
    except InvalidRequestError as error:
        return str(error)
    raise AssertionError(f"not refused: {result!r}")


@finding("10a", 'create(b"x" * 10**6)')
def bytes_as_a_shape() -> str:
    with _cluster():
        assert "not the bytes" in _refused(hoplite.create, b"x" * 10**6)
        assert "dimensions" in _refused(hoplite.create, [2] * 10**6)
        assert "more bytes" in _refused(hoplite.create, (1 << 40, 1 << 40))
    return "InvalidRequestError at once"
