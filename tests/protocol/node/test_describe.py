"""A question about refs and its answer find each other, whatever becomes of the session."""

import pytest

from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import (
    CallFailed,
    CancelCall,
    DescribeCall,
    DescriptionsAre,
    DirectoryLost,
    SendDirectory,
)
from hoplite_ucx.protocol.messages import (
    MAX_DESCRIBED,
    Describe,
    Described,
    Description,
    Join,
    ObjectState,
)
from tests.tools.machines import NodeDriver, ref


def test_a_node_passes_the_answer_on_once() -> None:
    node = NodeDriver()
    effects = node.handle(DescribeCall(5, (ref(1),), None))
    assert effects == [SendDirectory(Describe(5, (ref(1),)))]
    answer = (Description(ref(1), ObjectState.UNKNOWN),)
    assert node.directory(Described(5, answer)) == [DescriptionsAre(5, answer)]
    assert node.directory(Described(5, answer)) == []


def test_a_node_asks_again_in_its_next_session() -> None:
    node = NodeDriver()
    node.handle(DescribeCall(5, (ref(1),), None))
    node.handle(DirectoryLost())
    hello: Join = node.connect()
    assert hello.questions == (Describe(5, (ref(1),)),)


def test_a_directory_that_does_not_answer() -> None:
    node = NodeDriver()
    node.handle(DescribeCall(5, (ref(1),), node.now + 1.0))
    [failed] = [effect for effect in node.beat(8) if isinstance(effect, CallFailed)]
    assert (failed.call, failed.failure.kind) == (5, FailureKind.TIMEOUT)
    assert "directory" in failed.failure.detail
    assert not node.state.calls.questions


def test_a_question_that_is_given_up() -> None:
    node = NodeDriver()
    node.handle(DescribeCall(5, (ref(1),), node.now + 1.0))
    assert node.handle(CancelCall(5)) == []
    assert not node.state.calls.questions


@pytest.mark.parametrize("refs", [(b"short",), (ref(1),) * (MAX_DESCRIBED + 1)])
def test_bad_questions_are_refused(refs: tuple[bytes, ...]) -> None:
    [failed] = NodeDriver().handle(DescribeCall(5, refs, None))
    assert isinstance(failed, CallFailed)
    assert failed.failure.kind is FailureKind.INVALID
