"""What 10,000 nodes cost the directory. Processor time, so that a busy machine does not matter."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hoplite_ucx.protocol import Directory, Settings
from hoplite_ucx.protocol.events import FromNode, SendNode, SessionLost, Tick
from hoplite_ucx.protocol.ids import Version, node_id
from hoplite_ucx.protocol.invariants import check
from hoplite_ucx.protocol.messages import Completed, Copy, Place, Put, Want
from tests.tools.machines import CLUSTER, LARGE, join, ref

RECEIVERS = 10_000
SECONDS = 10.0
"""Twenty times what it takes. If each receiver cost more for every other one, it would be minutes."""
SOURCE = node_id(RECEIVERS + 1)
VERSION = Version(ref(1), 1, 1)


@pytest.fixture
def directory() -> Directory:
    """All are placed one behind the other, as if each came alone."""
    return made_of(Settings(stripes=1))


def made_of(settings: Settings) -> Directory:
    directory = Directory(1, CLUSTER, settings)
    for number in range(1, RECEIVERS + 2):
        directory.handle(FromNode(node_id(number), join(node_id(number))), 0.0)
    return directory


def put(directory: Directory) -> int:
    """How many placements it leads to."""
    effects = directory.handle(FromNode(SOURCE, Put(1, ref(1), LARGE, b"")), 0.0)
    directory.handle(FromNode(SOURCE, Completed(VERSION)), 0.0)
    return sum(isinstance(effect, SendNode) and isinstance(effect.message, Place) for effect in effects)


def want_all(directory: Directory) -> int:
    placed = 0
    for number in range(1, RECEIVERS + 1):
        for effect in directory.handle(FromNode(node_id(number), Want(ref(1))), 1e-6 * number):
            placed += isinstance(effect, SendNode) and isinstance(effect.message, Place)
    return placed


@contextmanager
def within(seconds: float, what: str, capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    began = time.process_time()
    yield
    took = time.process_time() - began
    with capsys.disabled():
        print(f"\n{what}: {took:.2f} s of processor time")  # noqa: T201
    assert took < seconds


def test_receivers_that_ask_one_by_one(directory: Directory, capsys: pytest.CaptureFixture[str]) -> None:
    put(directory)
    with within(SECONDS, f"{RECEIVERS} receivers placed one by one", capsys):
        placed = want_all(directory)
    assert placed == RECEIVERS
    check(directory)


def test_receivers_that_ask_together(capsys: pytest.CaptureFixture[str]) -> None:
    """They get it in eight stripes: eight times as many placements, in two crowds. The first of all starts over."""
    directory = made_of(Settings())
    put(directory)
    with within(10 * SECONDS, f"{RECEIVERS} receivers of stripes placed together", capsys):
        placed = want_all(directory)
        effects = directory.handle(Tick(), 1.0)
    placed += sum(isinstance(e, SendNode) and isinstance(e.message, Place) for e in effects)
    assert placed == 1 + 8 * RECEIVERS
    check(directory)


def test_receivers_that_wait_for_the_put(directory: Directory, capsys: pytest.CaptureFixture[str]) -> None:
    assert want_all(directory) == 0
    with within(SECONDS, f"{RECEIVERS} receivers placed when the object is put", capsys):
        placed = put(directory)
    assert placed == RECEIVERS
    check(directory)


def test_receivers_that_ask_while_nobody_can_send(directory: Directory, capsys: pytest.CaptureFixture[str]) -> None:
    """The only copy is out of reach for a moment: asking must not cost more for every one that waits already."""
    put(directory)
    directory.handle(SessionLost(SOURCE), 0.0)
    with within(SECONDS, f"{RECEIVERS} receivers that wait, and are placed when the source is back", capsys):
        assert want_all(directory) == 0
        back = join(SOURCE, copies=(Copy(VERSION, LARGE, b""),))
        effects = directory.handle(FromNode(SOURCE, back), 0.1)
    places = [e for e in effects if isinstance(e, SendNode) and isinstance(e.message, Place)]
    assert len(places) == RECEIVERS
    check(directory)
