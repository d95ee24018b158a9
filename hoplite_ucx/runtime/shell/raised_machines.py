"""What is logged when a machine raised: the fault itself, and the story of the objects that the event was about."""

import logging

from hoplite_ucx.protocol import Directory, NodeState
from hoplite_ucx.protocol.events import DirectoryEvent, FromDirectory, FromNode, FromPeer, NodeEvent, refs_in
from hoplite_ucx.protocol.ids import short
from hoplite_ucx.runtime.shell.logs import about

_STORIES = 8
"""The story of at most this many objects is logged, because an event may name thousands."""
_LINES = 20
"""The end of a story, where the reason is."""


def tell_raised(
    log: logging.Logger, event: DirectoryEvent | NodeEvent, error: Exception, machine: Directory | NodeState
) -> None:
    what = type(event).__name__
    if isinstance(event, FromNode | FromDirectory | FromPeer):
        what = f"{what}({type(event.message).__name__})"
    refs = refs_in(event)[:_STORIES]
    named = f" of {', '.join(map(short, refs))}" if refs else ""
    log.error(
        "%s%s could not be handled: a bug in this program, please report it; it continues with what is certain",
        what,
        named,
        exc_info=error,
        extra=about(*refs),
    )
    try:
        lines = [(ref, line) for ref in refs for line in machine.story(ref)[-_LINES:]]
    except Exception:  # nothing in a machine that raised is certain, and its successor does not need the story
        log.exception("the story cannot be told", extra=about(*refs))
        return
    for ref, (when, line) in lines:
        log.error("%.6f %s", when, line, extra=about(ref))
