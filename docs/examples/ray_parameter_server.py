"""A parameter server with Ray: the weights go to every worker, the gradients come back as one sum.

Run it in a Ray cluster, or without one on this machine:

    python ray_parameter_server.py [address]
"""

import sys

import numpy as np
import ray

import hoplite_ucx.ray as hoplite_ray

FEATURES = 200_000
ROWS = 8
STEPS = 20
RATE = 0.3


@ray.remote(num_cpus=0)
class Worker:
    """Nothing here knows of hoplite."""

    def __init__(self, shard: int) -> None:
        rng = np.random.default_rng(shard)
        self.inputs = rng.standard_normal((ROWS, FEATURES)) / np.sqrt(FEATURES)
        self.outputs = self.inputs @ np.random.default_rng(2**32).standard_normal(FEATURES)

    def gradient(self, weights: np.ndarray) -> np.ndarray:
        return self.inputs.T @ (self.inputs @ weights - self.outputs)

    def loss(self, weights: np.ndarray) -> float:
        return float(np.mean((self.inputs @ weights - self.outputs) ** 2))


def main() -> None:
    # The changed line: it was ray.init(...).
    hoplite_ray.init(address=sys.argv[1] if len(sys.argv) > 1 else None)
    workers = [Worker.remote(shard) for shard in range(2)]
    weights = np.zeros(FEATURES)
    for step in range(STEPS):
        ref = ray.put(weights)
        gradients = [worker.gradient.remote(ref) for worker in workers]
        total = hoplite_ray.reduce(gradients)  # instead of sum(ray.get(gradients)), which brings all of them here
        weights = weights - RATE * ray.get(total.ref)
        if step % 5 == 4:
            ref = ray.put(weights)
            losses = ray.get([worker.loss.remote(ref) for worker in workers])
            print(f"step {step + 1}: loss {np.mean(losses):.6f}")


if __name__ == "__main__":
    main()
