"""What a program prints when it ends while its daemon threads use the runtime: nothing."""

import pytest

from tests.tools.commands import exit_during


@pytest.mark.parametrize(
    "call",
    ["get(ref, timeout=None)", "get([ref, ref], timeout=None)", "wait([ref], timeout=None)", "get(ref, timeout=1000)"],
)
def test_a_daemon_thread_in_a_call_ends_silently(call: str) -> None:
    assert exit_during(call) == ("ended", "")


def test_a_daemon_thread_that_calls_after_the_exit_ends_silently() -> None:
    assert exit_during("get(ref, timeout=None)", after="hoplite.put(1)") == ("ended", "")


def test_what_else_fails_in_a_daemon_thread_is_printed() -> None:
    out, errors = exit_during("get(ref, timeout=None)", after="raise ValueError('the user must see this')")
    assert out == "ended"
    assert "ValueError: the user must see this" in errors
