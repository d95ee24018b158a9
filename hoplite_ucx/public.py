"""The public names: what `import hoplite_ucx` offers, and where it lives. This module only re-exports: its functions
are the methods of one `Cluster`, that of `init`."""

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
from hoplite_ucx.runtime.launch.owned_processes import AgentProcess, DirectoryProcess, start_agent, start_directory
from hoplite_ucx.runtime.launch.view_process import ViewProcess, start_view
from hoplite_ucx.runtime.worker import default_cluster as _current
from hoplite_ucx.runtime.worker.api import Cluster
from hoplite_ucx.runtime.worker.default_cluster import cluster, connect, init, is_initialized, shutdown
from hoplite_ucx.runtime.worker.in_place_puts import Draft
from hoplite_ucx.runtime.worker.object_info import ObjectInfo, ObjectState
from hoplite_ucx.runtime.worker.refs import ObjectRef, new_ref, ref_for

__all__ = [
    "AgentProcess",
    "ClosedError",
    "Cluster",
    "DirectoryProcess",
    "Draft",
    "GetTimeoutError",
    "HopliteError",
    "InternalError",
    "InvalidRequestError",
    "ObjectDeletedError",
    "ObjectInfo",
    "ObjectLostError",
    "ObjectRef",
    "ObjectState",
    "PutAbortedError",
    "StaleError",
    "StoreFullError",
    "ViewProcess",
    "allreduce",
    "as_completed",
    "cluster",
    "connect",
    "contributors",
    "create",
    "delete",
    "gather",
    "get",
    "info",
    "init",
    "is_initialized",
    "new_ref",
    "own",
    "put",
    "put_many",
    "reduce",
    "ref_for",
    "rejoin",
    "scope",
    "seal",
    "shutdown",
    "start_agent",
    "start_directory",
    "start_view",
    "trace",
    "wait",
]

rejoin = _current.default.rejoin
put = _current.default.put
put_many = _current.default.put_many
get = _current.default.get
gather = _current.default.gather
wait = _current.default.wait
info = _current.default.info
as_completed = _current.default.as_completed
delete = _current.default.delete
own = _current.default.own
reduce = _current.default.reduce
allreduce = _current.default.allreduce
contributors = _current.default.contributors
create = _current.default.create
seal = _current.default.seal
scope = _current.default.scope
trace = _current.default.trace
