"""What an agent tells its workers of results that they keep."""

from hoplite_ucx.protocol.ids import Version
from hoplite_ucx.runtime.agent.worker_sessions import Workers, WorkerSession
from hoplite_ucx.runtime.local import worker_messages as wire

VERSION = Version(bytes(16), 1, 1)


class Told(WorkerSession):
    """A session that is only told, and whose end ends another."""

    def __init__(self, workers: Workers, closes: "Told | None" = None) -> None:
        self._workers = workers
        self._closes = closes
        self.heard: list[wire.Reply] = []

    def send(self, reply: wire.Reply, fd: int | None = None) -> None:
        self.heard.append(reply)
        if self._closes is not None:
            self._workers._results.pop(self._closes, None)


def test_a_session_that_ends_with_another_does_not_keep_the_rest_from_hearing() -> None:
    workers = Workers.__new__(Workers)
    second, third = Told(workers), Told(workers)
    first = Told(workers, closes=second)
    workers._results = dict.fromkeys((first, second, third), VERSION)
    workers.dropped(VERSION)
    assert first.heard == third.heard == [wire.Outdated(VERSION.ref)]
    assert workers._results == {}
