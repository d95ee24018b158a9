"""Data-parallel training with torch: every process has a part of the data, gradients are averaged with `allreduce`.

    python docs/examples/torch_training.py --processes 3 --steps 30

The processes start on this machine. On several machines, start the same `train` on each, after `hoplite start` on every
host. `--device cuda` trains on GPUs; that has not been run on hardware.
"""

import argparse
import multiprocessing

import torch
from torch import nn

import hoplite_ucx as hoplite


def make_data(rank: int, count: int = 512) -> tuple[torch.Tensor, torch.Tensor]:
    """Two spirals, as every process draws them for itself."""
    generator = torch.Generator().manual_seed(1000 + rank)
    label = torch.randint(2, (count,), generator=generator)
    radius = torch.rand(count, generator=generator)
    angle = 4 * radius + label * torch.pi
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), label


def train(
    rank: int, processes: int, steps: int, device: str, results: "multiprocessing.Queue[tuple[float, float]]"
) -> None:
    hoplite.init()
    torch.manual_seed(1)  # the same weights in every process
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs, labels = (part.to(device) for part in make_data(rank))
    losses = []
    for step in range(steps):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model, rank, processes, step)
        optimizer.step()
        losses.append(loss.item())
    results.put((losses[-1], sum(parameter.sum().item() for parameter in model.parameters())))
    hoplite.shutdown()


def average_gradients(model: nn.Module, rank: int, processes: int, step: int) -> None:
    """Every process puts its gradients under a name that all know; the mean goes to all of them."""
    sources = [hoplite.ref_for(f"gradients of step {step} from {each}") for each in range(processes)]
    mean = hoplite.ref_for(f"mean of step {step}")
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    hoplite.put(gradients, ref=sources[rank])
    if rank == 0:
        hoplite.allreduce(sources, op="mean", ref=mean)
    hoplite.get(mean, out=gradients, timeout=60)  # fills the gradients where they are
    if rank == 0 and step > 0:  # every process has put this step's gradients, so it needs the last step's no more
        old = [hoplite.ref_for(f"gradients of step {step - 1} from {each}") for each in range(processes)]
        hoplite.delete([*old, hoplite.ref_for(f"mean of step {step - 1}")])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: not run on hardware yet")
    options = parser.parse_args()
    hoplite.init()
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    settings = (options.processes, options.steps, options.device, results)
    workers = [spawn.Process(target=train, args=(rank, *settings)) for rank in range(options.processes)]
    for worker in workers:
        worker.start()
    ends = [results.get(timeout=300) for _ in workers]
    for worker in workers:
        worker.join()
    print(f"loss after {options.steps} steps: {max(loss for loss, _ in ends):.3f}")
    print("all processes have the same weights:", len({weights for _, weights in ends}) == 1)
    hoplite.shutdown()


if __name__ == "__main__":
    main()
