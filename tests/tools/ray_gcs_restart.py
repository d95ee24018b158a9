"""A program: Ray's control service (GCS) dies and comes back, under a job with hoplite. Says what worked, line by line.

The service keeps what it knows in a database of its own, in a folder, so that it can come back. The program runs in a
process of its own: the test's process is connected to another Ray.
"""

import os
import sys
import tempfile
from typing import Any

folder = tempfile.TemporaryDirectory(prefix="gcs-", dir="/tmp", ignore_cleanup_errors=True)
os.environ.update({"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": folder.name})

import ray  # noqa: E402

import hoplite_ucx.ray as hoplite_ray  # noqa: E402
from tests.tools import ray_tasks as tasks  # noqa: E402
from tests.tools.ray_cluster import ray_with_hoplite  # noqa: E402
from tests.tools.ray_tasks import SIZE, get, name_of, ones  # noqa: E402


def works(actors: list[Any]) -> None:
    """A broadcast and a reduce, through hoplite."""
    ref = ray.put(ones())
    name_of(ref)
    assert get([actor.total.remote(ref) for actor in actors]) == [SIZE] * len(actors)
    made = [actor.make.remote(2.0) for actor in actors]
    assert get(hoplite_ray.reduce(made).ref)[0] == 2.0 * len(actors)


def main() -> None:
    with ray_with_hoplite() as cluster, folder:
        actors = tasks.actors_on_all_nodes()
        held = ray.put(ones())
        works(actors)
        cluster.kill_gcs()
        assert get([actor.total.remote(held) for actor in actors]) == [SIZE] * 2
        works(actors)
        sys.stdout.write("> it works without the GCS\n")
        cluster.start_gcs()
        works(actors)
        late = tasks.Actor.remote()
        works([late])
        assert get(late.total.remote(held)) == SIZE
        sys.stdout.write("> it works after the GCS came back, in new processes too\n")


if __name__ == "__main__":
    main()
