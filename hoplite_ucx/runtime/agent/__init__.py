"""The agent, one process on every host: it holds the host's objects, moves them between hosts, and combines them.

`agent` performs what the node's machine asks for. `store` has the memory, `slots` combine, `workers` are the processes
of users on this host.
"""
