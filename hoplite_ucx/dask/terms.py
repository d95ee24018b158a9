"""What a Dask process must know to join: sent by the scheduler's plugin on Dask's own connections, and to the
keeper."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Terms:
    cluster_id: str
    address: str
    """Of the directory."""
    token: str = field(repr=False)
    memory: int | None = None
    """Of each host's store, in bytes."""
    rate: float | None = None
    """Of each host's network card, in bytes a second."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
