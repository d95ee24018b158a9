"""Collectives for task-based Python programs: put an object once, get it anywhere, reduce whatever is ready.

This module is the public face of the package and only re-exports; the parts live below it. `protocol` decides,
`runtime` and `simulate` carry its decisions out on real and on virtual networks, `transports` moves bytes over one
link, `gpu` knows device memory, `cli` is the `hoplite` command and `bench` measures.
"""

__version__ = "0.1.0"
