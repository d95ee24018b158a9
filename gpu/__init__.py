"""The place for device memory: buffers on GPUs, staging, reduction kernels, the machine's topology. It is empty: arrays
on GPUs travel as pickles.

What comes here knows nothing of transports, and imports on a machine without a GPU and says so there.
"""
