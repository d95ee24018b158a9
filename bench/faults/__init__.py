"""Faults on real processes: agents, workers and a directory on emulated hosts, with a fault in the middle of an
operation.

`plans` draws a case from a seed, `cases` runs it on a `fault_cluster`, `oracle` checks it, `recording` stores the
result.
"""
