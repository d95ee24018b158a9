"""Who is what in the middle of an operation, as the harness tells it from a look at all agents."""

from typing import Any

from hoplite_ucx.bench.faults.scenarios import Operation, Role, Scenario, roles


def _look(*senders: str) -> dict[str, Any]:
    return {"phases": {}, "streams": [{"sender": sender, "into": ""} for sender in senders]}


def test_a_chain_of_three() -> None:
    scenario = Scenario(Operation.BROADCAST, 1 << 20, [0], [1, 2])
    looks = {0: _look(), 1: _look("na"), 2: _look("nb")}
    found = roles(scenario, looks, {"na": 0, "nb": 1, "nc": 2})
    assert found == {0: Role.SOURCE, 1: Role.RELAY, 2: Role.RECEIVER}


def test_who_was_fenced_is_known_in_its_next_life() -> None:
    scenario = Scenario(Operation.BROADCAST, 1 << 20, [0], [1])
    found = roles(scenario, {0: _look(), 1: _look("na.2")}, {"na": 0, "nb": 1})
    assert found == {0: Role.SOURCE, 1: Role.RECEIVER}
