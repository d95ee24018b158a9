"""The cluster of this process that the functions of `hoplite_ucx` use, and how one finds it, or another one."""

import os
from collections.abc import Callable
from functools import partial

from hoplite_ucx.runtime import cluster as clusters
from hoplite_ucx.runtime.api import Cluster
from hoplite_ucx.runtime.checks import check_text, invalid
from hoplite_ucx.runtime.client import Client
from hoplite_ucx.runtime.cluster import Attachment
from hoplite_ucx.runtime.membership import Membership


class _Default(Membership):
    """Wherever it is unpickled, it is that process's own: functions of `hoplite_ucx` can be sent anywhere."""

    def __reduce__(self) -> tuple[Callable[[], Membership], tuple[()]]:
        return _default, ()


def _default() -> Membership:
    return membership


membership = _Default("hoplite is not initialised in this process", "call hoplite.init() first")
default = Cluster(membership)


def init(address: str | None = None, *, memory: int | None = None, agent: str | None = None) -> Cluster:
    """Make this process part of a cluster, which every function of `hoplite_ucx` uses, and which is returned too.

    Without an address (and without `HOPLITE_ADDRESS`) a private cluster is started on loopback, which ends with this
    process, and which the processes started from here join; `memory` limits its store, in bytes. With one, the agent
    that runs on this host for the cluster at that address is used; `agent` names it where a host runs several.
    """

    def attach() -> Attachment:
        attachment = find()
        attachment.export()
        return attachment

    find = _way_to(address, memory, agent)
    membership.begin(attach)
    return default


def connect(address: str | None = None, *, memory: int | None = None, agent: str | None = None) -> Cluster:
    """Another cluster for this process, besides that of `init`, with the same calls as methods.

    The arguments are those of `init`. Without an address (and without a `HOPLITE_ADDRESS` that was set from outside) a
    private cluster is started; the processes started from here do not join it by themselves, but can connect to its
    `address`.
    """
    other = Membership("this cluster was closed", "call hoplite.connect() again")
    other.begin(_way_to(address, memory, agent))
    return Cluster(other)


def shutdown() -> None:
    """Leave the cluster; an embedded one ends. Arrays that came from `get` stay valid. Harmless if there is none."""
    membership.end()


def is_initialized() -> bool:
    """Whether `init` was called in this process, and `shutdown` was not."""
    return membership.attachment is not None


def cluster() -> Cluster:
    """The cluster that `init` made this process part of: its address, its id, this host's agent."""
    client()  # or the error that there is none
    return default


def client() -> Client:
    """The client of this process."""
    return membership.client


def _way_to(address: str | None, memory: int | None, agent: str | None) -> Callable[[], Attachment]:
    """Checks everything, and does nothing yet."""
    check_text("address", address)
    check_text("agent", agent)
    given: object = memory
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
        raise invalid(f"memory must be a number of bytes, not {given!r}", "give 4 << 30, for example")
    where = address if address is not None else _from_outside(clusters.ADDRESS)
    if where is None:
        return partial(clusters.start_embedded, memory or clusters.default_memory())
    if memory is not None:
        raise invalid("memory is for an embedded cluster", "give the limit to `hoplite start` instead")
    if agent is None and address is None:
        agent = _from_outside(clusters.AGENT)
    return partial(clusters.join, where, agent)


def _from_outside(name: str) -> str | None:
    """A variable as it was before this process set it for those that it starts."""
    attachment = membership.attachment
    hidden = attachment.hidden if attachment is not None else {}
    return (hidden[name] if name in hidden else os.environ.get(name)) or None
