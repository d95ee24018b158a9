"""The agent, one process on every host: it holds the host's objects, moves them between hosts, and combines them.

`agent` performs the effects of the node's machine. `store` has the memory, `slots` combine the parts of reductions,
`worker_sessions` serves the users' processes on this host, `warden` closes the agent's sockets when it is killed.
"""
