"""Threads for calls that nobody waits for at the end."""

import os

from hoplite_ucx.runtime.background import DaemonPool


def test_a_forked_child_has_threads_of_its_own() -> None:
    pool = DaemonPool(2, "test")
    assert pool.submit(os.getpid).result(10) == os.getpid()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = int(pool.submit(os.getpid).result(5) != os.getpid())
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
