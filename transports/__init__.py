"""Transports move bytes over one link between two nodes, each in its own way (TCP, UCX, shared memory).

They know memory, frames and streams, and nothing of objects, trees or directories: whatever is above them gives
sources and sinks, and learns how many bytes are final when a link breaks and which side broke it.
"""
