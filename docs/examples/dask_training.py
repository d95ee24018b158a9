"""Data-parallel gradient descent with Dask: the weights go to every worker, the gradients come back as one sum.

Run it with a Dask scheduler's address, or without one on this machine:

    python dask_training.py [tcp://scheduler:8786]
"""

import sys

import numpy as np
from distributed import Client, LocalCluster

import hoplite_ucx.dask as hoplite_dask

FEATURES = 50_000
ROWS = 8
STEPS = 20
RATE = 0.3


def load(shard: int, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """A worker's part of the data."""
    rng = np.random.default_rng(shard)
    inputs = rng.standard_normal((rows, FEATURES)) / np.sqrt(FEATURES)
    truth = np.random.default_rng(2**32).standard_normal(FEATURES)
    return inputs, inputs @ truth


def gradient(data: tuple[np.ndarray, np.ndarray], weights: np.ndarray) -> np.ndarray:
    """The task's function receives a plain array: nothing here knows of hoplite."""
    inputs, outputs = data
    return inputs.T @ (inputs @ weights - outputs)


def loss(data: tuple[np.ndarray, np.ndarray], weights: np.ndarray) -> float:
    inputs, outputs = data
    return float(np.mean((inputs @ weights - outputs) ** 2))


def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else LocalCluster(n_workers=2, threads_per_worker=1)
    with Client(address) as client:
        hoplite_dask.install(client)  # the first changed line
        workers = len(client.scheduler_info()["workers"])
        shards = client.map(load, range(workers))
        weights = np.zeros(FEATURES)
        for step in range(STEPS):
            shared = hoplite_dask.broadcast(client, weights)  # instead of client.scatter(weights, broadcast=True)
            gradients = [client.submit(gradient, shard, shared, pure=False) for shard in shards]
            total = hoplite_dask.reduce(gradients)  # instead of a tree of additions
            weights = weights - RATE * total.result()
            if step % 5 == 4:
                now = hoplite_dask.broadcast(client, weights)
                losses = client.gather([client.submit(loss, shard, now, pure=False) for shard in shards])
                print(f"step {step + 1}: loss {np.mean(losses):.6f}")


if __name__ == "__main__":
    main()
