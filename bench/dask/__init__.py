"""Dask programs on emulated hosts, plain and with `hoplite_ucx.dask`: how fast, what faults do, what many rounds leave.

`hosts` starts Dask's scheduler and a worker on every other host. The other modules are programs that run beside the
scheduler as Dask clients, and report in one JSON object per line.
"""
