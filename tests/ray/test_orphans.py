"""Objects whose token has ended for Ray: kept while somebody refers to them, and no longer."""

from collections.abc import Collection

import pytest

pytest.importorskip("ray")

from hoplite_ucx.ray import orphans as module
from hoplite_ucx.ray.orphans import Orphans


class Books:
    """Ray's: None if they cannot be read."""

    def __init__(self) -> None:
        self.now = 0.0
        self.referred: set[bytes] | None = set()

    def read(self, tokens: Collection[bytes]) -> set[bytes] | None:
        return None if self.referred is None else self.referred & set(tokens)


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Books:
    made = Books()
    monkeypatch.setattr(module.time, "monotonic", lambda: made.now)
    return made


def look(orphans: Orphans, books: Books) -> list[bytes]:
    books.now += module.LOOK_SECONDS
    return orphans.over()


def test_it_goes_when_twice_nobody_refers_to_it(books: Books) -> None:
    orphans = Orphans(books.read)
    orphans.add({b"a": b"token of a", b"b": b"token of b"})
    books.referred = {b"token of b"}
    assert look(orphans, books) == []
    assert orphans.over() == []  # it is not time to look
    assert look(orphans, books) == [b"a"]
    books.referred = set()
    assert look(orphans, books) == []
    books.referred = {b"token of b"}  # it was on its way to another process
    assert look(orphans, books) == []
    books.referred = set()
    assert [look(orphans, books), look(orphans, books)] == [[], [b"b"]]
    assert not len(orphans)


def test_without_books_it_stays_for_a_lease(books: Books) -> None:
    orphans = Orphans(books.read)
    orphans.add({b"a": b"token"})
    books.referred = None
    assert [look(orphans, books) for _ in range(5)] == [[]] * 5
    books.now += module._LEASE_SECONDS
    assert look(orphans, books) == [b"a"]
