"""Faults on the real thing: agents, workers and a directory on emulated hosts, with something broken in the middle.

`plans` draws a case from a seed, `cases` plays it in an `arena`, `oracle` judges it, `recording` keeps what came of it.
"""
