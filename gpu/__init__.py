"""Device memory: the CUDA driver, segments that processes share, arithmetic, staging, and the machine's topology.

It knows nothing of transports. It imports on a machine without a GPU, and says so there when a device is asked for.
"""
