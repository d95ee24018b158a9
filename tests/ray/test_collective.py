"""`ray.util.collective` with the backend "HOPLITE": every operation, and members that die."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.tools.waiting import HANG, eventually

ray = pytest.importorskip("ray")

from tests.tools.ray_members import Member  # noqa: E402
from tests.tools.ray_tasks import existing  # noqa: E402

pytestmark = pytest.mark.usefixtures("ray_cluster")
N = 3


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=HANG)


@pytest.fixture(scope="module")
def members(ray_cluster: None) -> Iterator[list[Any]]:
    made = [Member.remote() for _ in range(N)]
    yield made
    for each in made:
        ray.kill(each)


def names(members: list[Any]) -> set[bytes]:
    """Of all objects of the group that these members joined last."""
    return set().union(*get([member.names.remote() for member in members]))


def join(members: list[Any], group: str) -> None:
    get([member.join.remote(N, rank, group) for rank, member in enumerate(members)])


def expected(rank: int) -> dict[str, Any]:
    return {
        "allreduce SUM": 6,
        "allreduce PRODUCT": 6,
        "allreduce MIN": 1,
        "allreduce MAX": 3,
        "broadcast": 2,
        "reduce": 6 if rank == N - 1 else rank + 1,  # as with other backends, the other members keep what they had
        "allgather": [1, 2, 3],
        "reducescatter": 6 + N * rank,
        "recv": 1 if rank == 1 else rank + 1,
    }


def test_every_operation_and_a_group_of_the_same_name_afterwards(members: list[Any]) -> None:
    for like, count in (("numpy", 100_000), ("torch", 10)):
        join(members, "group")
        found = get([member.all_operations.remote("group", like, count) for member in members])
        assert found == [expected(rank) for rank in range(N)]
        made = names(members)
        assert existing(made)
        get([member.leave.remote("group") for member in members])
        eventually(lambda made=made: not existing(made))


def test_a_group_that_the_driver_declares(members: list[Any]) -> None:
    from ray.util import collective

    get([member.begin.remote(N, rank) for rank, member in enumerate(members)])
    collective.create_collective_group(members, N, list(range(N)), backend="HOPLITE", group_name="declared")
    assert get([member.allreduce.remote("declared") for member in members]) == [N] * N
    get([member.leave.remote("declared") for member in members])


def test_operations_that_nobody_waits_for_leave_no_heap_of_objects(members: list[Any]) -> None:
    join(members, "broadcasts")
    get([member.broadcasts.remote("broadcasts", 200, 1000) for member in members])
    made = names(members)
    assert len(made) > 200
    eventually(lambda: len(existing(made)) < 50)
    get([member.leave.remote("broadcasts") for member in members])
    eventually(lambda: not existing(made))


def test_what_was_sent_and_not_received_goes_when_all_have_left(members: list[Any]) -> None:
    join(members, "sent")
    get(members[0].send.remote("sent", 3))
    made = names(members)
    get([member.leave.remote("sent") for member in members[:2]])
    assert existing(made)  # rank 2 may still be in an operation
    get(members[2].leave.remote("sent"))
    eventually(lambda: not existing(made))


def test_a_member_that_dies_ends_the_operation_of_the_others_and_nothing_is_left(members: list[Any]) -> None:
    """The last of this module: the members die."""
    join(members, "short of one")
    waiting = [member.allreduce.remote("short of one") for member in members[:2]]
    members[2].die.remote()
    for call in waiting:
        with pytest.raises(ray.exceptions.RayTaskError, match="rank 2 of the collective group 'short of one' ended"):
            get(call)
    made = names(members[:2])
    assert existing(made)
    get(members[1].leave.remote("short of one"))
    members[0].die.remote()  # it does not leave
    eventually(lambda: not existing(made))
