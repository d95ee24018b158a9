"""The directory's process: `server` runs its machine for all agents, `lookup_sessions` answers workers directly."""
