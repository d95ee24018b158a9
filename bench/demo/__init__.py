"""The demo: real hosts, a broadcast and a reduce between them, and a host killed in the middle of each.

`hosts` starts the processes, `worker` is the user's process on each host, `acts` runs a broadcast and a reduce and
records what happens, `traffic` derives the tree from the counters of the links, `screen` shows it.
"""
