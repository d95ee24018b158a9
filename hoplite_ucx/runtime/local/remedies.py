"""Remedies that contain commands: complete, with the cluster's address, ready to type."""

from hoplite_ucx.runtime.host.addresses import host_towards, resolved
from hoplite_ucx.runtime.local.worker_messages import Greeting
from hoplite_ucx.transports.wire.addresses import format_address, parse_address

JOIN_OR_START = "run `hoplite start --head` for a new cluster, or `hoplite start --address HOST:PORT` to join one"


def join(address: str) -> str:
    return f"start one with `hoplite start --address {address}`"


def start_again(greeting: Greeting) -> str:
    """For a worker whose agent is gone."""
    if greeting.private:
        return "the program that started this cluster has exited or was killed: start it again"
    command = f"hoplite start {_part(greeting.directory)}"
    return f"check whether it was killed, start it again with `{command}`, then call shutdown() and init()"


def delete_left(greeting: Greeting) -> str:
    """For a worker whose agent has no room."""
    command = f"hoplite delete --idle 60s --address {greeting.directory} --agent {greeting.agent}"
    return f"run `{command}` to delete objects that ended programs left on this host"


def _part(directory: str) -> str:
    """A head ends with its agent, so on the directory's host the command must start the directory too."""
    try:
        host, port = parse_address(directory)
        is_here = resolved(directory) == resolved(format_address(host_towards(directory), port))
    except (OSError, ValueError):  # it cannot be reached
        is_here = False
    return f"--head --host {host} --port {port}" if is_here else f"--address {directory}"
