"""What the parts of a node share: its name, settings, timers, stories, and the effects that pile up for the shell."""

import math

from hoplite_ucx.protocol.events import Answer, NodeEffect, SendDirectory, SendPeer
from hoplite_ucx.protocol.ids import NodeId, StreamId, label
from hoplite_ucx.protocol.messages import ToDirectory, ToPeer
from hoplite_ucx.protocol.settings import Settings
from hoplite_ucx.protocol.story import Stories
from hoplite_ucx.protocol.timers import Timers


class Context:
    def __init__(self, node: NodeId, settings: Settings) -> None:
        self.node = node
        self.settings = settings
        self.timers = Timers()
        self.stories = Stories(label(node))
        self.now = -math.inf
        self.incarnation = 0
        """Of the last directory that welcomed us."""
        self.joined = False
        """Whether messages reach the directory; what is not sent now is announced by the next `Join`."""
        self._effects: list[NodeEffect] = []
        self._streams = 0

    def emit(self, effect: NodeEffect) -> None:
        self._effects.append(effect)

    def answer(self, effect: Answer) -> None:
        """Answer a user's call, whose deadline is then over."""
        self.timers.cancel(("call", effect.call))
        self._effects.append(effect)

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

    def take_effects(self) -> list[NodeEffect]:
        effects, self._effects = self._effects, []
        return effects
