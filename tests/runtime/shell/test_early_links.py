"""Nodes that join are introduced to each other, and have their links before the first stream."""

from hoplite_ucx.protocol.messages import Alive, encode
from hoplite_ucx.runtime.shell.early_links import MOST, introduced, introduction
from tests.tools.live import live_cluster
from tests.tools.waiting import eventually


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
        [host] = live.hosts
        for number in range(10):  # each is a round trip to the directory, behind whatever it says to those who join
            assert host.wait([host.put(number)])[1] == []
            assert host.status()["connected"]


def test_links_are_there_before_they_are_needed() -> None:
    with live_cluster(3) as live:
        expected = sorted(["receiving", "sending"] * 2)
        for host in live.hosts:
            eventually(lambda host=host: sorted(link["side"] for link in host.status()["links"]) == expected)
        assert not any(link["bytes"] for host in live.hosts for link in host.status()["links"])
