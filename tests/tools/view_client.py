"""Asks a live view as a browser would, over plain HTTP."""

import http.client
import json
from collections.abc import Generator
from contextlib import closing
from typing import Any

from hoplite_ucx.transports.wire.addresses import parse_address
from tests.tools.waiting import HANG


def parts_of(page: str) -> tuple[str, int, str]:
    address, _, key = page.removeprefix("http://").partition("/#key=")
    return (*parse_address(address), key)


def get(page: str, path: str, *, method: str = "GET", key: str | None = None, **headers: str) -> tuple[int, str]:
    host, port, right = parts_of(page)
    connection = http.client.HTTPConnection(host, port, timeout=HANG)
    connection.request(method, path, headers={"Authorization": f"Bearer {right if key is None else key}", **headers})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def lines(page: str) -> Generator[dict[str, Any], None, None]:
    """What changes, for as long as somebody asks. The server says something at least every few seconds."""
    host, port, key = parts_of(page)
    with closing(http.client.HTTPConnection(host, port, timeout=HANG)) as connection:
        connection.request("GET", "/api/changes", headers={"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        while line := answer.readline():
            yield json.loads(line)


def first_lines(page: str, count: int) -> list[dict[str, Any]]:
    with closing(lines(page)) as changes:
        return [next(changes) for _ in range(count)]
