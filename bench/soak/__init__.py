"""Endurance: many workers at random work for a long time, faults among them, and processes that must not grow.

`tasks` is what workers do and what may come of it, `sampling` watches the processes, `driver` runs all of it.
"""
