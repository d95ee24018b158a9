"""RLlib itself, unmodified, with a large network: do its weights travel through hoplite?

    python -m hoplite_ucx.bench.ray.rllib [plain]

IMPALA on CartPole. It needs `pip install 'ray[rllib]' torch`, which the tests do not bring. RLlib puts the new weights
once and passes the ref to all runners; each layer from 1 MiB on is an object of ours. While RLlib trains, another
thread looks into the stores and notes every object of that size: at least so many were carried. With `plain`, hoplite
does not run, for comparison.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from typing import Any

import ray

from hoplite_ucx.bench.harness.json_lines import say

_BROADCASTS = 30
_SECONDS = 90.0
"""It ends after so many broadcasts, or so long."""
_HIDDEN = [1024, 1024]
_RUNNERS = 2
_LOOK = 0.1
_LARGE = 1 << 20


class _Seen:
    """Large objects in the stores, looked for on a thread of its own."""

    def __init__(self) -> None:
        self.refs: set[str] = set()
        self.size = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        import hoplite_ucx.ray as hoplite_ray

        while not self._over.wait(_LOOK):
            for node in hoplite_ray.status()["nodes"].values():
                for found in node.get("largest", []):
                    if found["size"] >= _LARGE and found["ref"] not in self.refs:
                        self.refs.add(found["ref"])
                        self.size += found["size"]


def _algorithm() -> Any:
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    config = (
        IMPALAConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=_RUNNERS, num_cpus_per_env_runner=0, rollout_fragment_length=50)
        .learners(num_learners=0, num_aggregator_actors_per_learner=0)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=_HIDDEN))
        .training(train_batch_size_per_learner=500, broadcast_interval=1)
        .reporting(min_time_s_per_iteration=1)
    )
    return config.build_algo()


def main() -> None:
    ours = sys.argv[1:] != ["plain"]
    if ours:
        import hoplite_ucx.ray as hoplite_ray

        hoplite_ray.init(memory="1GiB", num_cpus=4, include_dashboard=False, logging_level="error")
    else:
        ray.init(num_cpus=4, include_dashboard=False, logging_level="error")
    algorithm = _algorithm()
    seen = _Seen() if ours else None
    began = time.monotonic()
    broadcasts = 0
    while broadcasts < _BROADCASTS and time.monotonic() - began < _SECONDS:
        result = algorithm.train()
        new = result.get("num_weight_broadcasts", math.nan)  # of this iteration; NaN if there was none
        broadcasts += 0 if math.isnan(new) else int(new)
        say(
            seconds=time.monotonic() - began,
            steps=result["env_runners"].get("num_env_steps_sampled_lifetime"),
            reward=result["env_runners"].get("episode_return_mean"),
            broadcasts=broadcasts,
            carried=len(seen.refs) if seen else None,
        )
    algorithm.stop()
    if seen:
        import hoplite_ucx.ray as hoplite_ray

        seen.close()
        say(carried=len(seen.refs), carried_bytes=seen.size, plain=hoplite_ray.status()["plain"])


if __name__ == "__main__":
    main()
