"""Nodes that join are introduced to each other, and have their links before the first stream."""

import time

from hoplite_ucx.protocol.messages import Alive, encode
from hoplite_ucx.runtime.introductions import MOST, introduced, introduction
from tests.runtime.live import live_cluster
from tests.runtime.test_cluster import eventually


def test_an_introduction_names_nodes_and_addresses() -> None:
    nodes = [(7, "198.18.0.1:5"), (9, "198.18.0.2:6")]
    assert introduced(introduction(nodes)) == nodes


def test_nothing_else_is_an_introduction() -> None:
    assert introduced(encode(Alive())) is None
    assert introduced(b"") is None


def test_an_introduction_to_nobody_is_no_message() -> None:
    mark = introduction([])[:-1]
    assert introduced(introduction([])) == introduced(mark) == introduced(mark + b"\xff") == []
    assert introduced(mark + b"\x91\x92\xa1x\xa1y") == []  # what should be a number is a text


def test_nobody_is_introduced_to_more_than_a_few() -> None:
    assert introduced(introduction([(number, "x:1") for number in range(2 * MOST)])) == [
        (number, "x:1") for number in range(MOST)
    ]


def test_a_node_that_is_alone_keeps_its_session() -> None:
    with live_cluster(1) as live:
        eventually(lambda: live.hosts[0].status()["connected"], 10)
        for _ in range(10):
            assert live.hosts[0].status()["connected"]
            time.sleep(0.05)


def test_links_are_there_before_they_are_needed() -> None:
    with live_cluster(3) as live:
        expected = sorted(["receiving", "sending"] * 2)
        deadline = time.monotonic() + 10
        while (sides := [sorted(link["side"] for link in host.status()["links"]) for host in live.hosts]) != [
            expected
        ] * 3:
            assert time.monotonic() < deadline, sides
            time.sleep(0.02)
        assert not any(link["bytes"] for host in live.hosts for link in host.status()["links"])
