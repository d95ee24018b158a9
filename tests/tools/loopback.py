"""Addresses of loopback that nobody else uses.

A test that gives up a port and takes it again later must be the only one that could have it meanwhile. On 127.0.0.1 a
connection that some other test makes may have been given it as its own port.
"""

import itertools
import os

_numbers = itertools.count(1)


def own_address() -> str:
    """Another one each time, in each process."""
    process = os.getpid()
    return f"127.{1 + (process >> 8) % 254}.{process % 256}.{1 + next(_numbers) % 254}"
