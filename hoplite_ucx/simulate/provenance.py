"""Tokens: small numbers that stand for what bytes are made of.

A put has a token of its own. Combining makes the token of the multiset of all the puts that went in, the same one
whatever the order and the tree. Small objects, which travel as bytes, get bytes by which their token is known again.
"""

import hashlib
from collections.abc import Iterable

from hoplite_ucx.simulate.content import EMPTY

POISON = -1


class Provenance:
    def __init__(self) -> None:
        # The sum of the marks of all puts in it, by token; token 0 is emptiness. Marks are so large that two multisets
        # have the same sum only by a chance that never comes.
        self._marks: list[int] = [0]
        self._tokens: dict[int, int] = {}
        self._by_bytes: dict[bytes, int] = {}

    def new_put(self) -> int:
        return self._token(int.from_bytes(_digest(len(self._marks))[:16]))

    def combined(self, tokens: Iterable[int]) -> int:
        total = 0
        for token in tokens:
            if token in (EMPTY, POISON):
                return POISON
            total += self._marks[token]
        return self._token(total)

    def _token(self, marks: int) -> int:
        token = self._tokens.get(marks)
        if token is None:
            token = self._tokens[marks] = len(self._marks)
            self._marks.append(marks)
        return token

    def to_bytes(self, token: int, size: int) -> bytes:
        digest = _digest(token)
        data = (digest * (size // len(digest) + 1))[:size]
        self._by_bytes[data] = token
        return data

    def of_bytes(self, data: bytes) -> int:
        return self._by_bytes.get(data, POISON)


def _digest(token: int) -> bytes:
    return hashlib.blake2b(str(token).encode()).digest()
