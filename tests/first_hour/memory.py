"""The memory of drafts and arrays, and when it is free again."""

import numpy as np

import hoplite_ucx as hoplite
from hoplite_ucx.errors import StoreFullError
from tests.first_hour.findings import finding


@finding("5", "a put right after the last array of a deleted object was dropped, 100 times")
def room_at_once() -> str:
    value, failed = np.zeros(3 << 20, np.uint8), 0
    cluster = hoplite.connect(memory=4 << 20)  # room for one
    try:
        ref = cluster.put(value)
        for _ in range(100):
            array = cluster.get(ref)
            cluster.delete(ref)
            del array
            try:
                ref = cluster.put(value)
            except StoreFullError:
                failed += 1
                ref = cluster.put(value)
    finally:
        cluster.close()
    assert not failed, f"{failed} of 100 puts found no room"
    return "all 100 puts find room"
