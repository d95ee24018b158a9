"""The picture that viewers are shown, from what a directory and agents say: without either of them."""

from typing import Any

import msgspec

from hoplite_ucx.protocol.directory.world import Incident
from hoplite_ucx.protocol.ids import label, node_id
from hoplite_ucx.protocol.watching import (
    Arrived,
    Begun,
    Decided,
    Known,
    Looked,
    MemberIs,
    Placed,
    ReductionIs,
    SlotIs,
    Stopped,
    Taken,
    Told,
)
from hoplite_ucx.view.picture import AFTERMATH, AGAIN, OPERATIONS_KEPT, PUTS_KEPT, QUIET, STREAMS_KEPT, Picture

A, B, C = (node_id(number) for number in (1, 2, 3))
SIZE = 1000
REF, SOURCE, SLOT = b"r" * 16, b"s" * 16, b"t" * 16


def looked(
    now: float, *told: Told, nodes: tuple[int, ...] = (A, B, C), incidents: tuple[Incident, ...] = (), **more: Any
) -> Looked:
    members = [MemberIs(node, f"host{node}", f"127.0.0.1:{node}", "up", 1e9) for node in nodes]
    usual: dict[str, Any] = {"fresh": False, "known": [], "stories": []} | more
    return Looked(1, "c", now, 1.0, 1, usual["fresh"], 0, members, list(told), list(incidents), usual["known"],
                  usual["stories"])  # fmt: skip


def report(now: float, *, streams: tuple[Any, ...] = (), history: tuple[Any, ...] = (), **more: Any) -> dict[str, Any]:
    memory = {"limit": 100, "used": 10, "pooled": 0}
    usual = {"memory": memory, "objects": 1, "workers": 1, "calls": 0, "slots": [], "names": [], "named": 0}
    return {"now": now, **usual, "streams": list(streams), "history": list(history)} | more


def moving(position: int, number: int = 1, sender: int = A, ref: bytes = REF) -> dict[str, Any]:
    usual = {"ref": ref.hex(), "into": "", "sender": label(sender), "size": SIZE}
    return usual | {"position": position, "number": number}


def over(
    opened: float, closed: float, number: int = 1, sender: int = A, ref: bytes = REF, **more: Any
) -> dict[str, Any]:
    usual = {"ref": ref.hex(), "into": "", "sender": label(sender), "number": number, "offset": 0, "size": SIZE}
    return (
        usual
        | {"opened": opened, "first_byte": opened + 0.01, "closed": closed, "watermark": SIZE, "fault": None}
        | more
    )


def placed(at: float, node: int, sender: int, number: int = 1, ref: bytes = REF, into: bytes = b"") -> Placed:
    return Placed(at, ref, node, sender, SIZE, into, number)


def shown(picture: Picture) -> dict[str, Any]:
    """Everything, as a browser gets it."""
    message = picture.join().take()
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(message))
    return found


def only_operation(picture: Picture) -> dict[str, Any]:
    [operation] = shown(picture)["ops"].values()
    whole: dict[str, Any] | None = picture.whole(operation["id"])
    assert whole is not None
    return whole


def test_a_broadcast_from_its_first_placement_to_its_end() -> None:
    picture = Picture()
    picture.looked(looked(1.0, Begun(1.0, REF, A, SIZE)))
    assert "ops" not in shown(picture)  # nobody gets it
    picture.looked(looked(1.1, placed(1.1, B, A)))
    picture.reported(label(B), report(1.3, streams=(moving(400),)), 0.0, 0.0)
    operation = only_operation(picture)
    assert (operation["kind"], operation["putter"], operation["ended"]) == ("broadcast", label(A), None)
    [stream] = operation["streams"]
    assert (stream["to"], stream["from"], stream["position"]) == (label(B), label(A), 400)
    picture.looked(looked(1.6, Arrived(1.5, REF, B)))
    picture.looked(looked(1.6 + QUIET))
    operation = only_operation(picture)
    assert operation["ended"] == 1.5
    assert operation["copies"] == {label(B): 1.5}
    assert operation["streams"][0]["ended"] == 1.5
    assert operation["streams"][0]["fault"] == ""


def test_a_death_ends_the_streams_of_the_dead_and_the_new_placement_continues() -> None:
    picture = Picture()
    picture.looked(looked(1.0, placed(1.0, B, A), placed(1.0, C, B, 2)))
    picture.reported(label(C), report(1.5, streams=(moving(500, 2, B),)), 0.0, 0.0)
    incident = Incident(2.0, "dead", "it is dead", "see its messages", REF, B)
    stopped = Stopped(1.9, REF, C, b"", 2, 500, "broken")
    picture.looked(looked(2.1, stopped, placed(1.95, C, A, 3), nodes=(A, C), incidents=(incident,)))
    operation = only_operation(picture)
    assert operation["deaths"] == [(2.0, label(B))]
    of_b, broken, again = operation["streams"]
    assert (of_b["fault"], of_b["ended"]) == ("dead", 2.0)
    assert (broken["fault"], broken["ended"], broken["position"]) == ("broken", 1.9, 500)
    assert (again["from"], again["offset"], again["ended"]) == (label(A), 500, None)
    everything = shown(picture)
    assert everything["hosts"][label(B)]["state"] == "dead"
    assert [each["what"] for each in everything["failures"]] == ["dead"]


def broken(opened: float, closed: float, number: int, sender: int) -> dict[str, Any]:
    return over(opened, closed, number, sender, watermark=500, fault="broken")


def test_an_operation_goes_on_though_the_directory_tells_of_a_new_sender_late() -> None:
    picture = Picture()
    picture.looked(looked(1.0, placed(1.0, B, A), placed(1.0, C, B, 2)))
    picture.looked(looked(1.1, Arrived(1.1, REF, B)))
    picture.reported(label(C), report(2.1, history=(broken(1.0, 2.0, 2, B),)), 0.0, 0.0)
    picture.reported(label(A), report(2.1 + 2 * AGAIN), 0.0, 0.0)  # the directory has been busy meanwhile
    assert only_operation(picture)["ended"] is None
    picture.looked(looked(2.1 + QUIET))  # it has not heard of the fault
    assert only_operation(picture)["ended"] is None
    stopped = Stopped(3.0, REF, C, b"", 2, 500, "broken")
    picture.looked(looked(3.1, stopped, placed(3.05, C, A, 3)))
    again = only_operation(picture)["streams"][-1]
    assert (again["from"], again["offset"], again["ended"]) == (label(A), 500, None)


def test_an_operation_whose_receiver_gets_no_other_sender_is_over_after_a_while() -> None:
    picture = Picture()
    picture.looked(looked(1.0, placed(1.0, B, A)))
    picture.looked(looked(2.0, Stopped(2.0, REF, B, b"", 1, 500, "broken")))
    picture.looked(looked(2.0 + AGAIN))
    assert only_operation(picture)["ended"] == 2.0


def test_an_agent_and_the_directory_mean_the_same_stream_by_its_number() -> None:
    """Placed twice behind one sender in a moment; the agent was held up when it opened the first."""
    picture = Picture()
    stopped = Stopped(1.9, REF, C, b"", 1, 500, "broken")
    picture.looked(looked(2.0, placed(1.0, C, A), stopped, placed(1.91, C, A, 2)))
    picture.reported(label(C), report(2.1, streams=(moving(600, 2),), history=(broken(1.8, 1.85, 1, A),)), 0.0, 0.0)
    first, second = only_operation(picture)["streams"]
    assert (first["begun"], first["ended"], first["fault"]) == (1.8, 1.85, "broken")
    assert (second["begun"], second["ended"], second["position"]) == (1.91, None, 600)


def test_a_stream_that_its_agent_told_of_first_is_one_stream() -> None:
    picture = Picture()
    picture.looked(looked(1.0))
    picture.reported(label(B), report(1.3, history=(over(1.1, 1.2),)), 0.0, 0.0)
    picture.looked(looked(1.4, placed(1.05, B, A), Arrived(1.25, REF, B)))
    [stream] = only_operation(picture)["streams"]
    assert (stream["ended"], stream["fault"]) == (1.2, "")


def test_what_a_fresh_picture_had_already_may_be_told_after_it() -> None:
    picture = Picture()
    picture.looked(looked(2.0, placed(1.9, C, A, 3), fresh=True))
    stopped = Stopped(1.8, REF, C, b"", 2, 500, "broken")
    picture.looked(looked(2.1, placed(1.0, C, B, 2), stopped, placed(1.9, C, A, 3)))
    [stream] = only_operation(picture)["streams"]
    assert (stream["from"], stream["ended"]) == (label(A), None)


def test_a_host_that_leaves_is_not_dead() -> None:
    picture = Picture()
    picture.looked(looked(1.0))
    picture.looked(looked(2.0, nodes=(A, B)))
    assert shown(picture)["hosts"][label(C)]["state"] == "left"
    assert label(C) not in picture.hosts()


def test_what_was_over_before_anybody_looked_is_told_by_agents() -> None:
    picture = Picture()
    picture.looked(looked(10.0))
    picture.reported(label(B), report(10.0, history=(over(1.0, 1.2),)), 0.0, 0.0)
    picture.reported(label(C), report(10.0, history=(over(1.05, 1.3, 2, B),)), 0.0, 0.0)
    picture.reported(label(C), report(10.2, history=(over(1.05, 1.3, 2, B),)), 0.0, 0.0)  # again
    operation = only_operation(picture)
    assert (operation["began"], operation["ended"]) == (1.0, 1.3)
    assert [(each["to"], each["from"]) for each in operation["streams"]] == [
        (label(B), label(A)),
        (label(C), label(B)),
    ]


def test_a_later_get_of_the_same_object_is_another_operation() -> None:
    picture = Picture()
    picture.looked(looked(10.0))
    picture.reported(label(B), report(10.0, history=(over(1.0, 1.2),)), 0.0, 0.0)
    picture.reported(label(C), report(10.0, history=(over(5.0, 5.1, 2),)), 0.0, 0.0)
    assert [op["began"] for op in shown(picture)["ops"].values()] == [1.0, 5.0]


def test_moments_of_agents_are_moved_to_the_clock_of_the_directory() -> None:
    picture = Picture()
    picture.looked(looked(100.0, placed(100.0, B, A)))
    picture.reported(label(B), report(0.3, streams=(moving(100),), history=()), 100.0, 0.001)
    [stream] = only_operation(picture)["streams"]
    assert stream["samples"] == [(100.3, 100)]


def test_a_fresh_picture_ends_what_it_does_not_have_and_an_agent_says_later_how_it_was() -> None:
    picture = Picture()
    picture.looked(looked(1.0, placed(1.0, B, A), placed(1.0, C, B, 2)))
    picture.looked(looked(8.0, placed(1.0, B, A), fresh=True))
    still, unseen = only_operation(picture)["streams"]
    assert still["ended"] is None
    assert (unseen["ended"], unseen["fault"]) == (8.0, "not seen")
    picture.reported(label(C), report(8.1, history=(over(1.01, 1.5, 2, B),)), 0.0, 0.0)
    _, seen = only_operation(picture)["streams"]
    assert (seen["ended"], seen["fault"], seen["position"]) == (1.5, "", SIZE)


def reduction(at: float, *, chosen: tuple[bytes, ...], slots: tuple[SlotIs, ...] = ()) -> ReductionIs:
    homes = tuple(B for _ in chosen)
    return ReductionIs(at, REF, "sum", 2, (SOURCE, SLOT), chosen, homes, chosen, A, False, SIZE, slots, 1, 2, "")


def test_streams_into_slots_belong_to_the_reduction_whichever_comes_first() -> None:
    picture = Picture()
    slot = SlotIs(SLOT, C, (SOURCE,), (), True)
    picture.looked(looked(1.0, placed(1.0, C, B, ref=SOURCE, into=SLOT)))
    picture.looked(looked(1.1, reduction(1.1, chosen=(SOURCE,), slots=(slot,))))
    operation = only_operation(picture)
    assert operation["kind"] == "reduce"
    assert operation["reduction"]["slots"][0]["host"] == label(C)
    assert [each["into"] for each in operation["streams"]] == [SLOT.hex()]
    picture.looked(looked(1.3, Taken(1.3, SOURCE, C, SLOT)))
    picture.looked(looked(9.0))
    assert only_operation(picture)["ended"] is None  # it waits for its other source
    picture.looked(looked(9.1, Decided(9.1, REF)))
    picture.looked(looked(9.2 + QUIET))
    assert only_operation(picture)["ended"] == 9.1


def test_a_failed_reduction_has_its_failure_and_its_story() -> None:
    picture = Picture()
    picture.looked(looked(1.0, reduction(1.0, chosen=())))
    incident = Incident(1.5, "invalid", "they <b>differ</b>", "reduce others", REF)
    picture.looked(looked(1.6, incidents=(incident,)))
    assert picture.questions()[1] == [REF]
    picture.looked(looked(1.7, incidents=(incident,), stories=[(REF, [(1.0, "asked for"), (1.5, "failed")])]))
    assert picture.questions()[1] == []
    picture.looked(looked(1.5 + AFTERMATH, incidents=(incident,)))
    assert picture.questions()[1] == [REF]  # with what came of it
    story = [(1.0, "asked for"), (1.5, "failed")]
    picture.looked(looked(1.6 + AFTERMATH, incidents=(incident,), stories=[(REF, story)]))
    assert picture.questions()[1] == []
    assert only_operation(picture)["failure"] == "they <b>differ</b>"
    [failure] = shown(picture)["failures"]
    assert [line["text"] for line in failure["story"]] == ["asked for", "failed"]


def test_the_largest_objects_are_those_of_all_agents_with_what_the_directory_knows() -> None:
    picture = Picture()
    picture.looked(looked(1.0))
    more = {"links": [], "gpu": {}, "largest": [(REF, 500), (SLOT, 20)], "names": [(REF, "weights")]}
    picture.reported(label(A), report(1.0, **more), 0.0, 0.0)
    picture.reported(label(B), report(1.0, **{**more, "largest": [(SOURCE, 700)], "names": []}), 0.0, 0.0)
    assert picture.questions()[0] == [SOURCE, REF, SLOT]
    picture.looked(looked(1.1, known=[Known(REF, "ready", 500, b"", 3, "127.0.0.1:1", 7.5)]))
    largest = shown(picture)["objects"]
    assert [each["ref"] for each in largest] == [SOURCE.hex(), REF.hex(), SLOT.hex()]
    assert largest[1] | {"name": "weights", "copies": 3, "creator": "127.0.0.1:1", "age": 7.5} == largest[1]


def test_links_have_the_rate_of_the_bytes_between_two_reports() -> None:
    picture = Picture()
    picture.looked(looked(1.0))

    def links(count: int) -> dict[str, Any]:
        link = {"peer": label(B), "side": "receiving", "transport": "tcp", "bytes": count, "lanes": [], "reason": "so"}
        return {"links": [link], "gpu": {}, "largest": []}

    picture.reported(label(A), report(1.0, **links(1000)), 0.0, 0.0)
    picture.reported(label(A), report(3.0, **links(5000)), 0.0, 0.0)
    [link] = shown(picture)["links"]
    assert (link["from"], link["to"], link["rate"], link["reason"]) == (label(B), label(A), 2000.0, "so")


def test_a_viewer_gets_only_what_has_changed_and_one_that_does_not_read_holds_only_keys() -> None:
    picture = Picture()
    picture.looked(looked(1.0, placed(1.0, B, A)))
    viewer = picture.join()
    first = viewer.take()
    assert first is not None
    assert first["first"]
    assert viewer.take() is None
    for moment in range(100):
        picture.reported(label(B), report(2.0 + moment, streams=(moving(moment),)), 0.0, 0.0)
    assert len(viewer.keys) <= 3  # a stream and a host, however often they changed
    later = viewer.take()
    assert later is not None
    assert set(later) == {"now", "hosts", "streams"}
    picture.leave(viewer)
    picture.looked(looked(200.0))
    assert viewer.take() is None


def test_ten_thousand_objects_and_operations_are_bounded() -> None:
    picture = Picture()
    for number in range(10_001 + PUTS_KEPT // 100):
        ref = number.to_bytes(16, "big")
        picture.looked(looked(number / 100, Begun(number / 100, ref, A, SIZE)))
    assert "ops" not in shown(picture)
    for number in range(3 * OPERATIONS_KEPT):
        at = 1000.0 + number
        picture.looked(
            looked(at, placed(at, B, A, ref=number.to_bytes(16, "big")), Arrived(at, number.to_bytes(16, "big"), B))
        )
        picture.looked(looked(at + 0.9))
    everything = shown(picture)
    assert len(everything["ops"]) <= OPERATIONS_KEPT + 1
    assert len(msgspec.json.encode(everything)) < 1 << 20
    assert STREAMS_KEPT < 10_000


def test_a_directory_that_does_not_answer_is_shown_as_that() -> None:
    picture = Picture()
    picture.looked(looked(1.0))
    picture.directory_lost()
    assert shown(picture)["cluster"]["connected"] is False
    picture.silent(label(A))
    assert "memory" not in shown(picture)["hosts"][label(A)]
