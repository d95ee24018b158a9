"""Links over UCX: RDMA where the loaded UCX has it, else shared memory or UCX's own TCP. Nothing loads before use."""

from hoplite_ucx.transports.ucx.settings import UcxSettings
from hoplite_ucx.transports.ucx.transport import UcxTransport

__all__ = ["UcxSettings", "UcxTransport"]
