"""The IO shell around the protocol: directory server, agent, object store and the worker's client.

It performs the effects that the protocol's state machines ask for on real sockets, threads, clocks and memory, and
feeds what happens back to them as events. It takes no decision that belongs to the protocol.
"""
