"""The directory: it knows objects, locations and waiters, and lays the trees. See `machine` for where to begin."""

from hoplite_ucx.protocol.directory.machine import Directory

__all__ = ["Directory"]
