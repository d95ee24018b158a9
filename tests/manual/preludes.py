"""What the programs of some pages take for granted, by page: the reader's own model, client or data."""

PRELUDES = {
    "docs/arrays.md": """
import numpy as np
import torch

import hoplite_ucx as hoplite

hoplite.init(memory="256MiB")
model, other = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
refs = [hoplite.put(np.ones(3)), hoplite.put(torch.ones(3, dtype=torch.float64))]
""",
    "docs/dask.md": """
import numpy as np
from distributed import Client

import hoplite_ucx.dask as hoplite_dask

client = Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None)
hoplite_dask.install(client, memory="256MiB")
weights, batches, add = np.ones(10), [1, 2], np.add
gradients = client.map(np.full, [10, 10, 10], [1, 2, 3])
def train(batch, weights):
    return batch * weights
""",
}
