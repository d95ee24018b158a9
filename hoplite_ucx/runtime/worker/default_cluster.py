"""The cluster that the functions of `hoplite_ucx` use in this process, and how to find it, or another one."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hoplite_ucx.runtime.host.memory_limits import store_limit
from hoplite_ucx.runtime.launch import cluster as clusters
from hoplite_ucx.runtime.launch.cluster import Attachment
from hoplite_ucx.runtime.launch.tokens import read_token_file
from hoplite_ucx.runtime.worker.api import Cluster
from hoplite_ucx.runtime.worker.checks import check_memory, check_path, check_settings, check_text, check_token, invalid
from hoplite_ucx.runtime.worker.client import Client
from hoplite_ucx.runtime.worker.membership import Membership
from hoplite_ucx.settings.reading import CONFIG


class _Default(Membership):
    """Unpickled in another process, it stands for that process's own cluster: functions of `hoplite_ucx` can be sent
    anywhere."""

    def __reduce__(self) -> tuple[Callable[[], Membership], tuple[()]]:
        return _default, ()


def _default() -> Membership:
    return membership


membership = _Default("hoplite is not initialised in this process", "call hoplite.init() first")
default = Cluster(membership)


def init(
    address: str | None = None,
    *,
    memory: int | str | None = None,
    agent: str | None = None,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | None = None,
) -> Cluster:
    """Make this process part of a cluster, which every function of `hoplite_ucx` uses, and return the cluster.

    Without an address (and without `HOPLITE_ADDRESS`) it starts a private cluster on loopback, which ends with this
    process, and which processes started from here join. `memory` limits its store, as bytes or as a text such as
    "4GiB"; `config` is a file as in `HOPLITE_CONFIG`, its settings; `token`, or the one in `token_file`, is its secret
    instead of a random one.

    With an address, it uses this host's agent of the cluster at that address; `agent` names the agent where a host runs
    several. The agent accepts its own user without a token; if a token is given, it must be the cluster's.

    Raises `InvalidRequestError` for invalid arguments, before anything is started, and `ClosedError` if there is no
    such agent (after 2 s), it does not answer (5 s), or a private cluster does not start (15 s).
    """

    def attach() -> Attachment:
        attachment = find()
        attachment.export()
        return attachment

    find = _way_to(address, memory, agent, token, token_file, config)
    membership.begin(attach)
    return default


def connect(
    address: str | None = None,
    *,
    memory: int | str | None = None,
    agent: str | None = None,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | None = None,
) -> Cluster:
    """Another cluster for this process, besides that of `init`, with the same calls as methods.

    The arguments are those of `init`, and so is what it raises. Without an address (and without a
    `HOPLITE_ADDRESS` that was set from outside) it starts a private cluster; processes started from here do not join it
    by themselves, but can connect to its `address`.
    """
    other = Membership("this cluster was closed", "call hoplite.connect() again")
    other.begin(_way_to(address, memory, agent, token, token_file, config))
    return Cluster(other)


def shutdown() -> None:
    """Leave the cluster; a private one ends. Arrays that came from `get` stay valid. Harmless if there is none. Raises
    nothing."""
    membership.end()


def is_initialized() -> bool:
    """Whether `init` was called in this process, and `shutdown` was not. Raises nothing."""
    return membership.attachment is not None


def cluster() -> Cluster:
    """The cluster that this process joined with `init`: its address, its id, this host's agent. Raises `ClosedError` if
    it joined none."""
    client()  # or the error that there is none
    return default


def client() -> Client:
    """The client of this process."""
    return membership.client


def _way_to(
    address: str | None,
    memory: int | str | None,
    agent: str | None,
    token: str | None,
    token_file: str | os.PathLike[str] | None,
    config: str | os.PathLike[str] | None,
) -> Callable[[], Attachment]:
    """Checks everything, and starts nothing yet."""
    check_text("address", address, "write host:port, such as head:7777")
    check_text("agent", agent, "give its name, as `hoplite status` shows it")
    limit = check_memory(memory)
    secret = _token(token, token_file)
    path = check_path("config", config)
    where = address if address is not None else _from_outside(clusters.ADDRESS)
    if where is None:
        if agent is not None:
            raise invalid("agent= needs a cluster that already runs", "give its address= too")
        variables = {} if path is None else {CONFIG: os.path.abspath(path)}
        settings = check_settings(path, limit)
        limit = store_limit(settings.store.memory)
        return partial(clusters.start_embedded, limit, secret, variables, settings.processes)
    if memory is not None:
        raise invalid("memory= is only for a private cluster", "give it to `hoplite start --memory` instead")
    if config is not None:
        raise invalid("config= is only for a private cluster", "set HOPLITE_CONFIG for `hoplite start` instead")
    if agent is None and _from_outside(clusters.ADDRESS) in (None, where):  # else it is one of another cluster
        agent = _from_outside(clusters.AGENT)
    return partial(clusters.join, where, agent, secret)


def _token(token: str | None, token_file: str | os.PathLike[str] | None) -> bytes | None:
    secret = check_token(token)
    path = check_path("token_file", token_file)
    if secret is not None and path is not None:
        raise invalid("token= and token_file= cannot both be given", "give one of them")
    return secret if path is None else read_token_file(Path(path))


def _from_outside(name: str) -> str | None:
    """A variable's value before this process set it for its children."""
    attachment = membership.attachment
    hidden = attachment.hidden if attachment is not None else {}
    return (hidden[name] if name in hidden else os.environ.get(name)) or None
