"""What an agent tells people of itself, for `hoplite status`, `links` and viewers: objects, streams, slots, links.

All of it is read from the machine and from what moves bytes; nothing changes by looking.
"""

from collections.abc import Mapping
from typing import Any

from hoplite_ucx.protocol import NodeState
from hoplite_ucx.protocol.ids import label
from hoplite_ucx.runtime.agent.local_streams import LocalStreams
from hoplite_ucx.runtime.agent.slots import Slot
from hoplite_ucx.runtime.agent.store import Store
from hoplite_ucx.runtime.shell.wakeups import now
from hoplite_ucx.transports.interface import Side, Transport

_LARGEST = 10


def memory(machine: NodeState, store: Store) -> dict[str, int]:
    account = machine.store()
    return {"limit": account.limit, "used": account.used, "pooled": store.pooled}


def largest(machine: NodeState) -> list[dict[str, Any]]:
    """The largest objects, and whether somebody uses them."""
    return [
        {
            "ref": holding.ref.hex(),
            "size": holding.size,
            "phase": holding.phase.value,
            "idle": now() - holding.used_at,
            "pins": len(holding.pins),
        }
        for holding in machine.store(largest=_LARGEST).largest
    ]


def streams(machine: NodeState, transport: Transport, local: LocalStreams) -> list[dict[str, Any]]:
    """What is being received: for the store, or into the slot that makes another ref. The position is that of what
    is final, or combined."""
    positions = transport.receive_positions() | local.positions()
    return [
        {
            "ref": incoming.ref.hex(),
            "into": incoming.into.hex(),
            "sender": label(incoming.sender),
            "position": positions.get((incoming.stream.receiver, incoming.stream.number), incoming.position),
            "size": incoming.size,
            "number": incoming.number,
        }
        for incoming in machine.incoming()
    ]


def slots(machine: NodeState, slots: Mapping[int, Slot]) -> list[dict[str, Any]]:
    """What is being combined here, and how far that is."""
    return [
        {"ref": ref.hex(), "position": slots[segment].segment.watermark(), "size": size}
        for ref, segment, size in machine.combining()
        if segment in slots
    ]


def links(transport: Transport, *, has_gpus: bool) -> list[dict[str, Any]]:
    """The receiving end knows why a link uses its transport: the receiver chooses."""
    reasons, lanes = transport.reasons(), transport.lanes()
    return [
        {
            "peer": f"n{link.peer:x}",
            "side": link.side.value,
            "transport": link.transport,
            "bytes": link.bytes,
            "gpu_memory": ("direct" if link.takes_devices else "staged") if has_gpus else "",
            "lanes": lanes.get((link.peer, link.side), []) if link.transport == "ucx" else [],
            "reason": reasons[link.peer]
            if link.side is Side.RECEIVING and link.peer in reasons
            else "as the receiver chose",
        }
        for link in transport.links()
    ]
