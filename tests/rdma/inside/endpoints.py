"""Endpoints whose links go over RDMA."""

from hoplite_ucx.transports.testing.ucx_endpoint import UcxEndpoint
from hoplite_ucx.transports.ucx.settings import UcxSettings

__all__ = ["RcEndpoint"]


class RcEndpoint(UcxEndpoint):
    settings = UcxSettings(tls=("rc",))
