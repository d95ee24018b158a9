"""Whether a link with cancelled streams still gets on. It only decides: the link reports what happened, and when.

A cancelled stream whose transfers are in UCX is closed when they end, or when its link is broken: nothing else makes
UCX let go of their memory. A slow link must be waited for; a stopped peer or a broken network must not. So the link
asks its peer again and again, and waits for as long as a transfer ends now and then, at either end. The peer is
*silent* if it does not answer; the link *stands still* if it answers and no transfer ends. How long that may take
follows from what answers and transfers took on this link before, since a slow machine is slow in both.
"""

import enum

__all__ = ["LOOK_SECONDS", "Standstill", "Verdict"]

LOOK_SECONDS = 0.025
"""How often a link that waits looks; most cancelled streams are closed before it looks once."""

# The shortest and the longest wait for an answer, and for a transfer to end while the peer answers.
_SILENT = (0.25, 5.0)
_STILL = (0.5, 60.0)
_TIMES = 8
"""A wait is so many times what the slowest answer or transfer took."""
_SHARE = 2
"""And a wait for an answer so many times the slowest transfer: answers share the network with transfers."""
_FIRST = 5.0
"""How long the first transfer of a link may take: there is nothing to compare it with."""
_FADE = 0.99
"""The slowest counts a little less with each that was faster."""


class Verdict(enum.Enum):
    WAIT = "the link gets on, or may"
    SILENT = "the peer does not answer"
    STILL = "the peer answers, and no transfer ends"


class Standstill:
    """Times are in seconds, of one clock that never goes back."""

    def __init__(self) -> None:
        self.slowest_transfer = 0.0
        """0 as long as none has ended."""
        self._slowest_answer = 0.0
        self._asked: float | None = None  # None if the peer has answered
        self._ended_there = 0
        self._moved = self._looked = 0.0

    # --- what happened -----------------------------------------------------------------------------------------

    def transfer_took(self, seconds: float) -> None:
        self.slowest_transfer = max(seconds, _FADE * self.slowest_transfer)

    def asked(self, now: float) -> None:
        self._asked = now

    def answered(self, now: float, ended: int, slowest: float) -> None:
        """The peer has seen so many transfers of the link end, and the slowest of them took so long."""
        if self._asked is not None:
            self._slowest_answer = max(now - self._asked, _FADE * self._slowest_answer)
            self._asked = None
        self.slowest_transfer = max(slowest, self.slowest_transfer)
        if ended != self._ended_there:
            self._ended_there = ended
            self.moved(now)

    def begin(self, now: float) -> None:
        """From now on the link waits for a cancelled stream."""
        self._moved = self._looked = now

    def moved(self, now: float) -> None:
        """A transfer of the link ended."""
        self._moved = max(self._moved, now)

    # --- what follows ------------------------------------------------------------------------------------------

    @property
    def must_ask(self) -> bool:
        return self._asked is None

    def look(self, now: float) -> Verdict:
        """To be called every `LOOK_SECONDS`. If it is late, this process was held up: not the peer's doing."""
        late = max(0.0, now - self._looked - LOOK_SECONDS)
        self._looked = now
        self._moved += late
        if self._asked is not None:
            self._asked += late
            if now - max(self._asked, self._moved) >= self.silent_seconds:
                return Verdict.SILENT
        return Verdict.STILL if now - self._moved >= self.still_seconds else Verdict.WAIT

    @property
    def silent_seconds(self) -> float:
        """How long the peer may take to answer."""
        return _within(_SILENT, max(_TIMES * self._slowest_answer, _SHARE * self.slowest_transfer))

    @property
    def still_seconds(self) -> float:
        """How long no transfer may end while the peer answers."""
        return _within(_STILL, _TIMES * self.slowest_transfer if self.slowest_transfer else _FIRST)


def _within(bounds: tuple[float, float], seconds: float) -> float:
    least, most = bounds
    return min(max(seconds, least), most)
