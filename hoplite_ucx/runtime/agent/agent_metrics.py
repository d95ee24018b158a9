"""What an agent exports: what its machine did, and how its store, its devices and its links stand."""

from hoplite_ucx import __version__
from hoplite_ucx.metrics.families import Family, Kind, Sample
from hoplite_ucx.protocol import NodeState
from hoplite_ucx.protocol.ids import label
from hoplite_ucx.runtime.agent.local_streams import LocalStreams
from hoplite_ucx.runtime.agent.store import Store
from hoplite_ucx.transports.interface import LinkStatus, Side, Transport

_DIRECTIONS = {Side.RECEIVING: "received", Side.SENDING: "sent"}


def info(machine: NodeState, agent: str, cluster: str) -> Family:
    labels = {"agent": agent, "cluster": cluster, "node": label(machine.node), "version": __version__}
    return Family(Kind.GAUGE, "hoplite_agent_info", "Always 1.", [Sample(1, tuple(labels.values()))], tuple(labels))


def traffic(transport: Transport, local: LocalStreams) -> list[Family]:
    carried = {(name, _DIRECTIONS[side]): count for (name, side), count in transport.carried().items()}
    carried["local", "received"] = local.copied
    links = {which: 0 for which in carried if which[0] != "local"}
    for link in transport.links():
        links[_which(link)] = links.get(_which(link), 0) + link.connected
    labels = ("transport", "direction")
    return [
        Family(
            Kind.COUNTER,
            "hoplite_transfer_bytes",
            "Bytes of objects that went over links, or (local) from this host's store into one of its slots.",
            [Sample(count, which) for which, count in carried.items()],
            labels,
        ),
        Family(
            Kind.GAUGE,
            "hoplite_links",
            "Connected ends of links.",
            [Sample(count, which) for which, count in links.items()],
            labels,
        ),
    ]


def _which(link: LinkStatus) -> tuple[str, str]:
    return link.transport, _DIRECTIONS[link.side]


def memory(machine: NodeState, store: Store) -> list[Family]:
    accounts, devices = machine.store(), store.devices.status()["devices"]

    def gauge(name: str, what: str, value: float) -> Family:
        return Family(Kind.GAUGE, name, what, [Sample(value)])

    def of_devices(key: str, what: str) -> Family:
        samples = [Sample(device[key], (device["uuid"], device["name"])) for device in devices]
        return Family(Kind.GAUGE, f"hoplite_device_{key}_bytes", what, samples, ("device", "name"))

    return [
        gauge("hoplite_store_limit_bytes", "The most that objects of this host may take.", accounts.limit),
        gauge("hoplite_store_used_bytes", "What objects of this host take, on devices too.", accounts.used),
        gauge("hoplite_store_pooled_bytes", "Memory of the host that is kept for objects to come.", store.pooled),
        gauge("hoplite_store_objects", "Objects and parts of objects in the store.", accounts.objects),
        Family(
            Kind.COUNTER,
            "hoplite_store_evicted_bytes",
            "Copies that were dropped to make room: others have the object.",
            [Sample(accounts.evicted_bytes)],
        ),
        Family(
            Kind.COUNTER, "hoplite_store_evictions", "How many copies that were.", [Sample(accounts.evicted_objects)]
        ),
        Family(
            Kind.COUNTER,
            "hoplite_device_evicted_bytes",
            "What was moved from a device to memory of the host.",
            [Sample(store.moved_to_host)],
        ),
        of_devices("limit", "How much of a device's memory the store may use."),
        of_devices("used", "Memory of a device that objects take."),
        of_devices("pooled", "Memory of a device that is kept for objects to come."),
    ]


def use(workers: int, open_calls: int, slots: int, connected: bool) -> list[Family]:
    return [
        Family(Kind.GAUGE, "hoplite_workers", "Programs that use this agent.", [Sample(workers)]),
        Family(Kind.GAUGE, "hoplite_calls_open", "Calls that wait for an answer.", [Sample(open_calls)]),
        Family(Kind.GAUGE, "hoplite_slots_open", "Slots of reductions that combine now.", [Sample(slots)]),
        Family(
            Kind.GAUGE,
            "hoplite_directory_connected",
            "1 while the agent has a session with the directory.",
            [Sample(connected)],
        ),
    ]
