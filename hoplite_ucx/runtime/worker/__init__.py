"""The user's process: the calls, from their checks (`api`, `async_api`) to the connection with the host's agent.

A put goes through `api` (checks), `objects.values` (how the value becomes bytes) and `client` (copies the bytes into
shared memory that the agent provides). This folder imports no code of the agent or the directory.
"""
