"""A trainer publishes its weights, and engines that come and go take the newest version."""

# Ray's annotations do not tell that @ray.remote adds `options` to a class.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import asyncio
import time
from typing import Any

import ray

from hoplite_ucx.bench.apps.job import Job, end, tell
from hoplite_ucx.bench.apps.pieces.places import pids_of, places
from hoplite_ucx.bench.apps.pieces.rounds import Rounds
from hoplite_ucx.bench.apps.pieces.versions import (
    Had,
    Trainer,
    arrays_of,
    load,
    module_of,
    noted,
    rows_of,
    stays_of,
)


@ray.remote
class Newest:
    def __init__(self) -> None:
        self.version = 0
        self.refs: list[Any] = []
        self.changed = asyncio.Condition()

    async def publish(self, refs: list[Any]) -> None:
        async with self.changed:
            self.version, self.refs = self.version + 1, refs
            self.changed.notify_all()

    async def get(self, newer_than: int) -> tuple[int, list[Any]]:
        async with self.changed:
            await self.changed.wait_for(lambda: self.version > newer_than)
            return self.version, self.refs


@ray.remote
class Log:
    def __init__(self) -> None:
        self.had: list[Had] = []

    def add(self, had: Had) -> None:
        self.had.append(had)

    def all(self) -> list[Had]:
        return self.had


@ray.remote(max_restarts=-1, max_task_retries=-1)
class Engine:
    def __init__(self, job: Job, number: int, weights: Any, log: Any) -> None:
        self.number = number
        self.version = 0
        self.module = module_of(job)
        self.weights = weights
        self.log = log

    def follow(self, until: int) -> None:
        ray.get(self.log.add.remote(noted(self.number, self.version, self.module)))
        while self.version < until:
            self.version, (ref,) = ray.get(self.weights.get.remote(self.version))
            load(self.module, ray.get(ref))
            ray.get(self.log.add.remote(noted(self.number, self.version, self.module)))


def main(job: Job) -> None:
    ray.init(
        address=job.address,
        _node_ip_address=job.nodes[0],
        logging_level="warning",
    )
    first, *others = places(job.nodes)
    log = Log.options(**first).remote()
    weights = Newest.options(**first).remote()
    stays = stays_of(job)

    def joining(version: int) -> dict[int, Any]:
        return {
            number: Engine.options(**others[number]).remote(job, number, weights, log)
            for number, stay in enumerate(stays)
            if stay.after == version
        }

    def publish(state: dict[str, Any]) -> None:
        ray.get(weights.publish.remote([ray.put(arrays_of(state))]))

    engines = joining(0)
    rounds = Rounds(job, pids_of(list(engines.values()))[-1])
    trainer = Trainer(job)
    publish(trainer.step())
    ray.get([engine.follow.remote(1) for engine in engines.values()])  # all is up when it counts
    following = [engine.follow.remote(stays[number].until) for number, engine in engines.items()]
    published = {}
    for version in (number + 2 for number in rounds):
        state = trainer.step()
        published[version] = time.monotonic()
        publish(state)
        tell({"published": version})
        engines |= (joined := joining(version))
        following += [engine.follow.remote(stays[number].until) for number, engine in joined.items()]
        for number in [number for number in engines if stays[number].until == version]:
            del engines[number]  # it ends when it has this version
    ray.get(following)
    for row in rows_of(published, ray.get(log.all.remote())):
        tell(row)
    tell({"killed_at": rounds.struck_at})


if __name__ == "__main__":
    main(Job.from_command_line())
    end()
