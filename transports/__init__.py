"""Transports move bytes over one link between two nodes: over TCP, UCX or shared memory.

They know memory, frames and streams, and nothing of objects, trees or directories. The layer above gives them sources
and sinks. When a link breaks, it learns how many bytes are final and which side broke it.
"""
