"""The directory as a whole: who is rejected, what heartbeats say, and what a story tells."""

import msgspec
import pytest

from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.messages import (
    Alive,
    Heartbeat,
    Progress,
    Rejected,
)
from hoplite_ucx.protocol.settings import MIB
from tests.tools.machines import LARGE, RATE, DirectoryDriver, broken, chain_of_three, join, ref, version

R = ref(1)
V = version(1)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"protocol": 999}, FailureKind.INVALID),
        ({"cluster": "another"}, FailureKind.INVALID),
        ({"node": 12345}, FailureKind.INVALID),
    ],
)
def test_who_does_not_belong_here_is_rejected(changes: dict[str, object], kind: FailureKind) -> None:
    d = DirectoryDriver()
    d.tell("A", msgspec.structs.replace(join(d["A"]), **changes))
    [rejected] = d.heard("A")
    assert isinstance(rejected, Rejected)
    assert rejected.failure.kind is kind
    assert len(d.directory.members) == 0


def test_heartbeats_are_answered_and_tell_how_far_streams_have_come() -> None:
    d, _ = chain_of_three()
    d.now = 0.1
    d.tell("B", Heartbeat((Progress(V, 8 * MIB), Progress(version(7), 1))))
    assert d.heard("B") == [Alive(members=4)]
    assert d.receiver("B", 1).watermark == 8 * MIB
    finish = 0.1 + (LARGE - 8 * MIB) / RATE
    assert d.broadcast(1).pool.locations[d["B"]].finish == pytest.approx(finish)
    d.tell("B", Heartbeat((Progress(V, LARGE * 2),)))
    assert d.receiver("B", 1).watermark <= LARGE


def test_the_story_of_an_object_names_what_happened() -> None:
    d, places = chain_of_three()
    d.tell("C", broken(places[1], MIB))
    story = " / ".join(text for _, text in d.directory.story(R))
    for words in ("n1 put", "n2 placed behind n1", "n3 lost its sender at 1048576: broken"):
        assert words in story
