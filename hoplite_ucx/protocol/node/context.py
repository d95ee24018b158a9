"""What the parts of a node share: its name, settings, timers, stories, and the effects collected for the shell."""

import math
from dataclasses import dataclass

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import Answer, NodeEffect, SendDirectory, SendPeer
from hoplite_ucx.protocol.ids import CallId, NodeId, StreamId, label
from hoplite_ucx.protocol.messages import ToDirectory, ToPeer
from hoplite_ucx.protocol.settings import Settings
from hoplite_ucx.protocol.story import Stories
from hoplite_ucx.protocol.timers import Timers


@dataclass(slots=True)
class OpenPoll:
    """A question to the directory about a call whose time is over, or that does not wait for a producer."""

    ref: bytes | None
    until: float | None
    """If the object is there, the call may wait for its bytes until then."""
    asked: float | None = None
    """Since when the answer is awaited, in `Context.awake`; None if it has come."""

    def is_final(self, now: float) -> bool:
        """The call ends with the answer, whatever it is."""
        return self.until is not None and self.until <= now


class Context:
    def __init__(self, node: NodeId, settings: Settings, directory: str = "") -> None:
        """`directory` is the address of the directory, as errors name it."""
        self.node = node
        self._directory = f"the directory at {directory}" if directory else "the directory"
        self.settings = settings
        self.timers = Timers()
        self.stories = Stories(label(node))
        self.now = -math.inf
        self.incarnation = 0
        """Of the last directory that welcomed us."""
        self.joined = False
        """Whether messages reach the directory; what is not sent now is announced by the next `Join`."""
        self.welcomed = False
        """Whether the directory has taken us in, in this session."""
        self.refusal: Failure | None = None
        """Why we could not join, when it answered last."""
        self.slept = 0.0
        """By how much this node was late, in all its heartbeats."""
        self.heard = 0.0
        """When the directory said something last, in `awake`."""
        self.beat_due = math.inf
        self.polls: dict[CallId, OpenPoll] = {}
        self._effects: list[NodeEffect] = []
        self._streams = 0

    def emit(self, effect: NodeEffect) -> None:
        self._effects.append(effect)

    def answer(self, effect: Answer) -> None:
        """Answer a user's call, whose deadline is then over."""
        self.forget_call(effect.call)
        self._effects.append(effect)

    def forget_call(self, call: CallId) -> None:
        self.timers.cancel(("call", call))
        self.polls.pop(call, None)

    def awake(self) -> float:
        """A clock that stops while this node is paused: from when a heartbeat is due until it comes."""
        return self.now - self.slept - max(0.0, self.now - self.beat_due)

    def silence(self) -> float:
        """How long the directory has been silent. This node's own pauses do not count."""
        return self.awake() - self.heard

    def hears_directory(self) -> bool:
        return self.welcomed and self.silence() < self.settings.suspicion

    def hear(self) -> None:
        self.heard = self.awake()

    def unanswered(self, ref: bytes | None, so_far: str = "") -> Failure:
        """The failure of a call that ends without the directory's answer."""
        silence = self.silence()
        remedy = "check that the directory runs, and that this host can reach it"
        if self.refusal is not None:
            detail, remedy = f"this node could not join {self._directory}: {self.refusal.detail}", self.refusal.remedy
        elif self.joined and silence < min(2 * self.settings.heartbeat, self.settings.suspicion):  # it answers others
            detail = f"{self._directory} did not answer this call in time: it is busy, or has just started"
        else:
            detail = f"{self._directory} has not answered for {silence:.1f} s"
        return Failure(FailureKind.TIMEOUT, f"{detail}{so_far}", remedy, ref)

    def tell_directory(self, message: ToDirectory) -> None:
        if self.joined:
            self._effects.append(SendDirectory(message))

    def tell_peer(self, peer: NodeId, message: ToPeer) -> None:
        self._effects.append(SendPeer(peer, message))

    def tell(self, ref: bytes, text: str, *details: object) -> None:
        self.stories.add(self.now, ref, text, *details)

    def next_stream(self) -> StreamId:
        self._streams += 1
        return StreamId(self.node, self._streams)

    def succeed(self, earlier: "Context") -> None:
        """Continue the numbers of an earlier machine of this node: no two streams have the same name."""
        self.now = earlier.now
        self.incarnation = earlier.incarnation
        self.stories = earlier.stories
        self._streams = earlier._streams

    def take_effects(self) -> list[NodeEffect]:
        effects, self._effects = self._effects, []
        return effects
