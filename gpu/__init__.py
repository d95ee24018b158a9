"""Device memory: buffers on GPUs, staging through pinned host memory, reduction kernels and the machine's topology.

It knows nothing of transports. It imports on a machine without a GPU and says so there; any other CUDA error is
an error.
"""
