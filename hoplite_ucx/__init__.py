"""Collectives for task-based Python programs: put an object once, get it anywhere, reduce whatever is ready.

This module is the public face of the package and only re-exports: its functions are the methods of one `Cluster`, that
of `init`. The parts live below it. `protocol` decides,
`runtime` and `simulate` carry its decisions out on real and on virtual networks, `transports` moves bytes over one
link, `gpu` knows device memory, `cli` is the `hoplite` command and `bench` measures.
"""

from hoplite_ucx.errors import (
    ClosedError,
    GetTimeoutError,
    HopliteError,
    InternalError,
    InvalidRequestError,
    ObjectDeletedError,
    ObjectLostError,
    PutAbortedError,
    StaleError,
    StoreFullError,
)
from hoplite_ucx.runtime import current as _current
from hoplite_ucx.runtime.api import Cluster
from hoplite_ucx.runtime.current import cluster, connect, init, is_initialized, shutdown
from hoplite_ucx.runtime.drafts import Draft
from hoplite_ucx.runtime.refs import ObjectRef, new_ref, ref_for

__version__ = "0.1.0"

__all__ = [
    "ClosedError",
    "Cluster",
    "Draft",
    "GetTimeoutError",
    "HopliteError",
    "InternalError",
    "InvalidRequestError",
    "ObjectDeletedError",
    "ObjectLostError",
    "ObjectRef",
    "PutAbortedError",
    "StaleError",
    "StoreFullError",
    "allreduce",
    "cluster",
    "connect",
    "contributors",
    "create",
    "delete",
    "gather",
    "get",
    "init",
    "is_initialized",
    "new_ref",
    "put",
    "reduce",
    "ref_for",
    "scope",
    "seal",
    "shutdown",
    "wait",
]

put = _current.default.put
get = _current.default.get
gather = _current.default.gather
wait = _current.default.wait
delete = _current.default.delete
reduce = _current.default.reduce
allreduce = _current.default.allreduce
contributors = _current.default.contributors
create = _current.default.create
seal = _current.default.seal
scope = _current.default.scope
