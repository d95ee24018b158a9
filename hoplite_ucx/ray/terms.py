"""What the processes of a Ray job must know of hoplite, and the names under which they find it."""

from __future__ import annotations

from dataclasses import dataclass

NAMESPACE = "hoplite"
"""Ray's namespace for our actors: those of users stay free of them."""
THRESHOLD = 1 << 20
"""Below this many bytes, Ray's own way is as fast."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Made by the process that started hoplite, and handed out by the head."""

    address: str
    """Of the directory."""
    threshold: int = THRESHOLD
    """Arrays from this many bytes on travel through hoplite."""
    arrays: bool = True
    """Whether they do so wherever Ray serialises them."""


def head_name(job: str) -> str:
    """Of the head actor of a job, given its id."""
    return f"hoplite-head-{job}"


def agent_name(job: str, node: str) -> str:
    return f"hoplite-agent-{job}-{node}"
