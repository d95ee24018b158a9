"""An ensemble of models on Ray: each batch goes to all of them, and the sum of their votes decides."""

# Ray's annotations do not tell that @ray.remote adds `options` to a class.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import ray

import hoplite_ucx.ray as hoplite
from hoplite_ucx.bench.apps.job import AT_ONCE, Job, end, tell
from hoplite_ucx.bench.apps.pieces.ensemble import Ballot, Batch, Voter, answered, arrivals, batch_of
from hoplite_ucx.bench.apps.pieces.panel import Panel
from hoplite_ucx.bench.apps.pieces.places import pids_of, places
from hoplite_ucx.bench.apps.pieces.rounds import Rounds


@ray.remote(max_restarts=-1)
class Model:
    def __init__(self, job: Job, number: int) -> None:
        self.voter = Voter(job, number)

    def vote(self, batch: Batch) -> Ballot:
        return self.voter.vote(batch)


def main(job: Job) -> None:
    hoplite.init(
        memory=job.memory,
        rate=job.rate,
        address=job.address,
        _node_ip_address=job.nodes[0],
        logging_level="warning",
    )
    _, *others = places(job.nodes)
    models = [Model.options(**place).remote(job, number) for number, place in enumerate(others)]
    rounds = Rounds(job, pids_of(models)[-1])
    panel = Panel(models)
    batch = batch_of(job)

    def ask(number: int, due: float) -> None:
        time.sleep(max(0.0, due - time.monotonic()))
        began = due or time.monotonic()
        query = ray.put(batch)
        ballots = panel.ask(query, job.patience if number >= 0 else None)
        decided = np.argmax(sum(ballot.votes for ballot in ballots), 1)
        seconds = time.monotonic() - began
        tell(answered(number, began, seconds, ballots, decided, rounds))

    ask(-1, 0.0)
    if job.load:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(ask, range(job.rounds), arrivals(job)))
        return
    for number in rounds:
        ask(number, 0.0)


if __name__ == "__main__":
    main(Job.from_command_line())
    end()
