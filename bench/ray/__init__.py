"""Ray programs on emulated hosts, plain and with `hoplite_ucx.ray`: how fast, what faults do, what many rounds leave.

`nodes` starts a Ray node on every host, and `measuring` times two jobs in turns. The other modules are drivers, which
run on the first host, beside Ray's head, and report in one JSON object per line.
"""
