"""Belonging to a cluster, from joining it to leaving it, in one process: a forked child must join again."""

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from hoplite_ucx.errors import ClosedError
from hoplite_ucx.runtime.launch.cluster import Attachment, join
from hoplite_ucx.runtime.worker.checks import invalid
from hoplite_ucx.runtime.worker.client import Client, closed, forked


class Membership:
    """At most one attachment at a time."""

    def __init__(self, absent: str, remedy: str) -> None:
        """The error text and remedy when there is no attachment."""
        self._absent = absent
        self._remedy = remedy
        self._lock = threading.RLock()  # a signal handler may end it while it begins or ends
        self._beginning = False
        self._attachment: Attachment | None = None
        self._pid = 0
        _memberships.add(self)

    def begin(self, attach: Callable[[], Attachment]) -> None:
        with self._lock:
            if self.attachment is not None or self._beginning:
                raise invalid("hoplite is initialised already", "call shutdown() first")
            self._beginning = True
            try:
                self._attachment = attach()
                self._pid = os.getpid()
                _open.add(self)
            finally:
                self._beginning = False

    def end(self) -> None:
        """Harmless if there is nothing to end."""
        with self._lock:
            attachment, self._attachment = self.attachment, None
            _open.discard(self)
            if attachment is not None:
                attachment.close()

    def renew(self, seconds: float, agent: str | None) -> None:
        """Continue with another agent of the cluster, if the current one is gone."""
        old = self.attachment
        client = self.client  # or the error that there is none
        if old is None or client.is_answered():
            return
        if old.children:
            raise invalid("this private cluster has ended with its agent", "call shutdown() and init() again")
        greeting = client.greeting
        new = join(greeting.directory, agent, seconds=seconds, cluster=greeting.cluster)
        with self._lock:
            if self._attachment is old:
                self._attachment, new = new, old
        new.close()  # which is the old one, unless another thread was first

    @property
    def attachment(self) -> Attachment | None:
        """None in a child of the process that it belongs to."""
        return self._attachment if self._pid == os.getpid() else None

    @property
    def attached(self) -> Attachment:
        """The attachment, or the error that there is none."""
        attachment = self._attachment
        if attachment is None:
            raise closed(self._absent, self._remedy)
        if self._pid != os.getpid():
            raise forked()
        return attachment

    @property
    def client(self) -> Client:
        return self.attached.client

    def __reduce__(self) -> Any:
        raise invalid("a cluster cannot be pickled", "send its address, and connect() to it there")

    def after_fork_in_child(self) -> None:
        self._lock = threading.RLock()  # a thread that held it does not exist here
        self._beginning = False


_memberships: "weakref.WeakSet[Membership]" = weakref.WeakSet()
_open: set[Membership] = set()
"""They stay open until they are ended, even without any other reference."""


def _after_fork_in_child() -> None:
    _open.clear()
    for membership in list(_memberships):
        membership.after_fork_in_child()


@atexit.register
def _end_all() -> None:
    """The remaining threads are daemons, which end wherever they are: errors of their calls are not printed."""
    threading.excepthook = partial(_report_unless_closed, threading.excepthook)
    for membership in list(_open):
        membership.end()


def _report_unless_closed(
    report: Callable[[threading.ExceptHookArgs], object], failed: threading.ExceptHookArgs
) -> None:
    if not issubclass(failed.exc_type, ClosedError):
        report(failed)


os.register_at_fork(after_in_child=_after_fork_in_child)
