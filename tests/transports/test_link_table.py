"""What the links of a transport carried together: also those that have ended, and each of them once."""

from dataclasses import dataclass

from hoplite_ucx.transports.interface import LinkStatus, Side
from hoplite_ucx.transports.link_table import LinkTables


@dataclass(eq=False)
class Link:
    peer: int
    side: Side
    bytes: int

    def status(self) -> LinkStatus:
        return LinkStatus(self.peer, self.side, "tcp", True, 0, self.bytes, 0)


def test_a_link_that_ended_is_counted_once_however_often_it_ends() -> None:
    tables: LinkTables[Link, Link] = LinkTables(None)
    link = Link(1, Side.RECEIVING, 10)
    tables.add_receiving(link)
    tables.add_sending(Link(1, Side.SENDING, 5))
    assert tables.carried() == {Side.RECEIVING: 10, Side.SENDING: 5}
    tables.receiving_ended(link)
    tables.receiving_ended(link)
    assert tables.carried() == {Side.RECEIVING: 10, Side.SENDING: 5}
    tables.add_receiving(Link(1, Side.RECEIVING, 3))
    assert tables.carried()[Side.RECEIVING] == 13


def test_a_link_that_is_replaced_before_it_ended_stays_counted() -> None:
    tables: LinkTables[Link, Link] = LinkTables(None)
    old = Link(1, Side.SENDING, 10)
    tables.add_sending(old)
    tables.add_sending(Link(1, Side.SENDING, 0))
    assert tables.carried()[Side.SENDING] == 10
    tables.sending_ended(old)
    assert tables.carried()[Side.SENDING] == 10
