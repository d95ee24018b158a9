"""What happens to an effect that could not be performed: its waiting calls fail at once with a typed error.

The machine takes an effect it asked for as in progress. If the shell fails to perform it (no memory, no descriptor, or
a bug of ours), nothing would ever follow, and the calls behind it would wait for their deadlines. This module says
which events the machine gets instead, and which calls have failed.
"""

from typing import Any

from hoplite_ucx.protocol import NodeState
from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError, internal
from hoplite_ucx.protocol.events import (
    Combine,
    CombineBytes,
    CombineFailed,
    ConnectDirectory,
    DirectoryLost,
    Duplicate,
    NodeEvent,
    Receive,
    ReceiveClosed,
    Serve,
    ServeClosed,
    Supply,
)
from hoplite_ucx.protocol.ids import CallId
from hoplite_ucx.protocol.messages import StreamFault


def failure_of(error: Exception, doing: str) -> Failure:
    """The failure for users, from an error that came up while the agent was doing something for them."""
    if isinstance(error, HopliteError):
        return error.failure
    if isinstance(error, MemoryError | OSError):
        detail, remedy = (
            f"the agent ran out of memory or file descriptors in {doing}: {error}",
            "delete objects, or raise the host's limits",
        )
        return Failure(FailureKind.STORE_FULL, detail, remedy)
    return internal("agent", doing, error)


def events_instead(effect: Any, failure: Failure) -> list[NodeEvent]:
    """The events that the machine gets instead of those it waits for."""
    match effect:
        case ConnectDirectory():
            return [DirectoryLost()]
        case Receive(part=int()):
            # The slot ends with its stream: it can neither be fed nor be told where it stands.
            closed = ReceiveClosed(effect.stream, effect.offset, StreamFault.BROKEN)
            return [CombineFailed(effect.segment, failure), closed]
        case Receive():
            return [ReceiveClosed(effect.stream, effect.offset, StreamFault.BROKEN)]
        case Serve():
            return [ServeClosed(effect.stream)]
        case Combine() | Supply():
            return [CombineFailed(effect.segment, failure)]
        case CombineBytes():
            return [CombineFailed(effect.version, failure)]
    return []


def calls_behind(effect: Any, machine: NodeState) -> list[CallId]:
    """The calls that cannot be answered without this effect."""
    match effect:
        case Receive(part=None):
            return machine.calls_awaiting(effect.version.ref)
        case Duplicate():
            return machine.calls_awaiting_copy(effect.segment)
    call = getattr(effect, "call", None)
    return [] if call is None else [call]
