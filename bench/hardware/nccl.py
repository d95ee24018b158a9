"""What NCCL sends from one host to another, through torch: `python -m hoplite_ucx.bench.hardware.nccl RANK ADDRESS SIZE
BACKEND`. The first rank listens at the address and prints a JSON object. With gloo it runs without a GPU, for tests."""

import json
import statistics
import sys
import time
from datetime import timedelta

_SECONDS = 60
_REPEAT = 5


def main() -> None:
    import torch
    import torch.distributed as distributed

    rank, address, size, backend = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    distributed.init_process_group(backend, f"tcp://{address}", timedelta(seconds=_SECONDS), world_size=2, rank=rank)
    tensor = torch.ones(size, dtype=torch.uint8, device="cuda" if backend == "nccl" else "cpu")

    def once() -> float:
        began = time.perf_counter()
        distributed.broadcast(tensor, src=1)
        if backend == "nccl":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    seconds = [once() for _ in range(_REPEAT + 2)][2:]
    distributed.destroy_process_group()
    if rank == 0:
        rate = round(size / statistics.median(seconds))
        sys.stdout.write(json.dumps({"backend": backend, "bytes_per_second": rate}) + "\n")


if __name__ == "__main__":
    main()
