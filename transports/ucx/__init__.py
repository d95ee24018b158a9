"""Links over UCX: RDMA where the loaded UCX has it, else shared memory or UCX's own TCP.

Nothing is imported here: whoever reads the settings (a worker, a command) does not load the links.
"""
