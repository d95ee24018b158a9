"""One trainer, several inference processes that join and leave: each fills its model with the newest weights in place.

    python docs/examples/weight_sync.py --versions 5

The trainer puts every version once, however many processes want it, and does not know them. `--device cuda` keeps the
models on a GPU; that has not been run on hardware.
"""

import argparse
import multiprocessing

import torch
from torch import nn

import hoplite_ucx as hoplite

KEPT = 2
"""Older versions are deleted."""


def weights(version: int) -> hoplite.ObjectRef:
    return hoplite.ref_for(f"weights, version {version}")


def make_model(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.BatchNorm1d(512), nn.Linear(512, 10)).to(device)


def checksum(model: nn.Module) -> float:
    return sum(tensor.double().sum().item() for tensor in model.state_dict().values())


def newest_after(version: int) -> int:
    """The newest version that is there; else the one after this one, which `get` waits for."""
    refs = [weights(version + 1 + each) for each in range(50)]
    ready = [each for each, info in enumerate(hoplite.info(refs)) if info.state == "ready"]
    return version + 1 + max(ready, default=0)


def serve(name: str, last: int, device: str, seen: "multiprocessing.Queue[tuple[str, int, float]]") -> None:
    """Until it has the version after which it leaves, or a newer one."""
    hoplite.init()
    model = make_model(device).eval()
    version = -1
    while version < last:
        version = newest_after(version)
        try:
            hoplite.get(weights(version), out=model.state_dict(), timeout=60)
        except hoplite.ObjectDeletedError:
            continue  # the trainer was faster: there is a newer one
        seen.put((name, version, checksum(model)))
    hoplite.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: not run on hardware yet")
    options = parser.parse_args()
    last = options.versions - 1
    hoplite.init()
    spawn = multiprocessing.get_context("spawn")
    seen = spawn.Queue()

    def start(name: str, until: int) -> "multiprocessing.process.BaseProcess":
        process = spawn.Process(target=serve, args=(name, until, options.device, seen))
        process.start()
        return process

    processes = [start("stays", last), start("leaves early", 0)]
    model = make_model(options.device)
    published = {}
    reports = []
    for version in range(options.versions):
        with torch.no_grad():  # training would go here
            for parameter in model.parameters():
                parameter.add_(0.01)
        published[version] = checksum(model)
        hoplite.put(model.state_dict(), ref=weights(version))
        if version == options.versions // 2:
            processes.append(start("joins late", last))
        # For the demonstration only: the next version comes when somebody has this one.
        while version not in {report[1] for report in reports}:
            reports.append(seen.get(timeout=300))
        if version >= KEPT:
            hoplite.delete(weights(version - KEPT))
    for process in processes:
        process.join()
    while not seen.empty():
        reports.append(seen.get())
    for name, version, got in reports:
        print(f"{name} has version {version}: {'right' if got == published[version] else 'WRONG'}")
    hoplite.shutdown()


if __name__ == "__main__":
    main()
