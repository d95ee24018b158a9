"""The user's process: the calls, from their checks (`api`, `async_api`) to the connection with the host's agent.

Nothing here loads code of the agent or the directory.
"""
