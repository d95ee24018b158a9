"""How long a node that made a machine raise must wait, so that a recurring bug does not become an endless storm.

The first time costs nothing: most faults do not come back. After that the wait doubles each time, until there has been
quiet for long.
"""

from collections.abc import Hashable
from dataclasses import dataclass

_LONGEST = 16.0  # leases
_QUIET = 16.0  # leases
_MOST = 10_000


@dataclass(slots=True)
class _Offence:
    times: int
    until: float


class Probation:
    def __init__(self) -> None:
        self._offences: dict[Hashable, _Offence] = {}

    def note(self, who: Hashable, now: float, lease: float) -> None:
        """It happened now, because of `who`."""
        for known in [known for known, offence in self._offences.items() if now > offence.until + _QUIET * lease]:
            del self._offences[known]
        times = self._offences[who].times + 1 if who in self._offences else 1
        wait = min(lease / 4 * 2 ** min(times - 2, 16), _LONGEST * lease) if times > 1 else 0.0
        self._offences[who] = _Offence(times, now + wait)
        while len(self._offences) > _MOST:
            del self._offences[next(iter(self._offences))]

    def times(self, who: Hashable) -> int:
        return self._offences[who].times if who in self._offences else 0

    def left(self, who: Hashable, now: float) -> float:
        """For how long it must wait."""
        return max(0.0, self._offences[who].until - now) if who in self._offences else 0.0
