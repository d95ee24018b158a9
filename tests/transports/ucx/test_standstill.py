"""How a link that is slow is told from one whose peer is stopped, and from one whose network is broken."""

import pytest

from hoplite_ucx.transports.ucx.standstill import LOOK_SECONDS, Standstill, Verdict


class Looks:
    """A link that waits for a cancelled stream, and looks in time."""

    def __init__(self, **known: float) -> None:
        self.now = 100.0
        self.judge = Standstill()
        self.ended_there = 0
        if "transfer" in known:
            self.judge.transfer_took(known["transfer"])
        if "answer" in known:
            self.judge.asked(self.now - known["answer"])
            self.judge.answered(self.now, 0, 0.0)
        self.judge.begin(self.now)

    def look(self, *, after: float = LOOK_SECONDS, answers: bool, slowest: float = 0.0) -> Verdict:
        self.now += after
        if answers:
            self.judge.answered(self.now, self.ended_there, slowest)
        verdict = self.judge.look(self.now)
        if self.judge.must_ask:
            self.judge.asked(self.now)
        return verdict

    def wait(self, *, answers: bool, slowest: float = 0.0) -> tuple[Verdict, float]:
        """What it comes to, and after how long. Ends: the longest wait is bounded."""
        began = self.now
        while (verdict := self.look(answers=answers, slowest=slowest)) is Verdict.WAIT:
            assert self.now - began < 100, "it waits for ever"
        return verdict, self.now - began


def test_a_peer_that_is_stopped_is_given_up_soon() -> None:
    verdict, seconds = Looks(transfer=0.002, answer=0.001).wait(answers=False)
    assert verdict is Verdict.SILENT
    assert seconds < 0.4


def test_a_peer_that_always_took_long_to_answer_is_given_longer() -> None:
    verdict, seconds = Looks(answer=0.2).wait(answers=False)
    assert verdict is Verdict.SILENT
    assert 1.6 <= seconds < 2


def test_a_network_that_carries_nothing_is_given_up_though_the_peer_answers() -> None:
    verdict, seconds = Looks(transfer=0.01).wait(answers=True)
    assert verdict is Verdict.STILL
    assert 0.5 <= seconds < 0.7


@pytest.mark.parametrize("known_there", [False, True])
def test_transfers_that_take_seconds_are_waited_for(known_there: bool) -> None:
    """Who receives cannot tell how long transfers take, since it asks before there is anything: its peer says so."""
    link = Looks() if known_there else Looks(transfer=3.0)
    verdict, seconds = link.wait(answers=True, slowest=3.0)
    assert verdict is Verdict.STILL
    assert 24 <= seconds < 25


def test_the_first_transfer_of_a_link_has_nothing_to_be_compared_with() -> None:
    assert Looks().wait(answers=True)[1] >= 5
    assert Looks().wait(answers=False)[0] is Verdict.SILENT


@pytest.mark.parametrize("where", ["here", "there"])
def test_a_link_on_which_transfers_end_is_waited_for(where: str) -> None:
    link = Looks(transfer=0.01)
    for _ in range(100):
        for _ in range(10):
            assert link.look(answers=True) is Verdict.WAIT
        if where == "here":
            link.judge.moved(link.now)
        else:
            link.ended_there += 1
    assert link.wait(answers=True)[0] is Verdict.STILL


def test_what_holds_up_this_process_is_not_the_peers_doing() -> None:
    link = Looks(transfer=0.002, answer=0.001)
    for _ in range(5):
        assert link.look(after=3.0, answers=False) is Verdict.WAIT
    assert link.wait(answers=False)[0] is Verdict.SILENT


def test_a_link_that_became_fast_again_is_not_waited_for_as_long() -> None:
    link = Looks(transfer=10.0)
    for _ in range(1000):
        link.judge.transfer_took(0.001)
    assert link.wait(answers=True)[1] < 0.7
