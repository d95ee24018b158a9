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
        self._puts: list[tuple[int, ...]] = [()]  # by token; token 0 is emptiness
        self._tokens: dict[tuple[int, ...], int] = {}
        self._by_bytes: dict[bytes, int] = {}

    def new_put(self) -> int:
        token = len(self._puts)
        self._puts.append((token,))
        self._tokens[(token,)] = token
        return token

    def combined(self, tokens: Iterable[int]) -> int:
        puts: list[int] = []
        for token in tokens:
            if token in (EMPTY, POISON):
                return POISON
            puts.extend(self._puts[token])
        key = tuple(sorted(puts))
        if key not in self._tokens:
            self._tokens[key] = len(self._puts)
            self._puts.append(key)
        return self._tokens[key]

    def to_bytes(self, token: int, size: int) -> bytes:
        digest = hashlib.blake2b(str(token).encode()).digest()
        data = (digest * (size // len(digest) + 1))[:size]
        self._by_bytes[data] = token
        return data

    def of_bytes(self, data: bytes) -> int:
        return self._by_bytes.get(data, POISON)
