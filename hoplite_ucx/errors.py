"""What this library raises on purpose. Every error names the object, the peer where there is one, and a remedy."""

from hoplite_ucx.protocol.errors import (
    ClosedError,
    Failure,
    FailureKind,
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

__all__ = [
    "ClosedError",
    "Failure",
    "FailureKind",
    "GetTimeoutError",
    "HopliteError",
    "InternalError",
    "InvalidRequestError",
    "ObjectDeletedError",
    "ObjectLostError",
    "PutAbortedError",
    "StaleError",
    "StoreFullError",
]
