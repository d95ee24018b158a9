"""Other systems, for comparison: on the same emulated hosts and by the same clock.

Each peer is one small program that does the operations as its own users would write them: `gloo`, `openmpi`, `ray`,
`dask`. `launching` knows how each is started on the hosts, `measuring` takes their figures. They may be installed in
an environment of their own, which `ci/peers` makes.
"""
