"""Small objects live with the directory, up to a total."""

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.events import Probed
from hoplite_ucx.protocol.messages import (
    Aborted,
    Delete,
    Inline,
    Place,
    Put,
    Want,
)
from tests.tools.machines import DirectoryDriver, ref, version

R = ref(1)
V = version(1)


def test_small_objects_come_with_the_answer() -> None:
    d = DirectoryDriver("A", "B", "C")
    d.tell("C", Want(R))
    d.tell("A", Put(1, R, 3, b"layout", b"abc"))
    d.tell("B", Want(R))
    inline = Inline(V, b"layout", b"abc")
    assert d.heard("B") == d.heard("C") == [inline]
    assert d.broadcast(1).receivers == {}


def test_inline_bytes_outlive_the_node_that_put_them() -> None:
    d = DirectoryDriver("A", "B")
    d.tell("A", Put(1, R, 3, b"", b"abc"))
    d.handle(Probed(d["A"], accepted=False))
    d.tell("B", Want(R))
    assert d.heard_all(Inline, "B") == [Inline(V, b"", b"abc")]


def test_who_gives_up_an_inline_put_can_still_have_the_bytes() -> None:
    d = DirectoryDriver("A")
    d.tell("A", Want(R), Put(1, R, 3, b"", b"abc"), Aborted(V))
    assert d.heard_all(Inline, "A") == [Inline(V, b"", b"abc")]
    assert not d.broadcast(1).receivers


def test_inline_objects_are_bounded_in_total_and_stream_beyond_it() -> None:
    d = DirectoryDriver("A", "B", settings=Settings(inline_total=10))
    d.tell("A", *(Put(n, ref(n), 6, b"", b"sixsix") for n in (1, 2)))
    d.heard("A")
    d.tell("B", Want(ref(1)), Want(ref(2)))
    first, second = d.heard("B")
    assert isinstance(first, Inline)
    assert isinstance(second, Place)
    assert second.sender == d["A"]
    d.tell("A", Delete(3, (ref(1),)), Put(4, ref(4), 6, b"", b"sixsix"))
    d.heard("B")
    d.tell("B", Want(ref(4)))
    assert isinstance(d.heard("B")[0], Inline), "a deleted object gives its room back"
