"""Collectives for task-based Python programs: put an object once, get it anywhere, reduce whatever is ready.

This module is the public face of the package and only re-exports; the parts live below it. `protocol` decides,
`runtime` and `simulate` carry its decisions out on real and on virtual networks, `transports` moves bytes over one
link, `gpu` knows device memory, `cli` is the `hoplite` command and `bench` measures.
"""

from hoplite_ucx.errors import HopliteError
from hoplite_ucx.runtime.api import (
    allreduce,
    contributors,
    create,
    delete,
    gather,
    get,
    new_ref,
    put,
    reduce,
    seal,
    wait,
)
from hoplite_ucx.runtime.current import init, is_initialized, shutdown
from hoplite_ucx.runtime.drafts import Draft
from hoplite_ucx.runtime.refs import ObjectRef
from hoplite_ucx.runtime.scopes import scope

__version__ = "0.1.0"

__all__ = [
    "Draft",
    "HopliteError",
    "ObjectRef",
    "allreduce",
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
    "scope",
    "seal",
    "shutdown",
    "wait",
]
