"""`hoplite doctor`: which transports this machine has, what prevents faster ones, and the remedy."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hoplite_ucx.cli.quantities import format_size
from hoplite_ucx.runtime.settings import load
from hoplite_ucx.settings.errors import ConfigurationError
from hoplite_ucx.settings.reading import CONFIG
from hoplite_ucx.transports.detection import LinkHardware, detect
from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.mixed_transport import MixedTransport
from hoplite_ucx.transports.selection import Selection
from hoplite_ucx.transports.wire.handshake import Identity

_NAME_IT = "links use TCP instead; to see it refused, set links.transport = 'rdma'"


def doctor(
    root: Annotated[
        Path,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Where to find /sys and /proc; other than / only for tests and for files from another host.",
        ),
    ] = Path("/"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Check this machine's UCX, RDMA devices, TCP and limits, and start UCX as an agent would.

    Exits with 1 if the configuration does not work here.
    """
    machine = detect(root)
    problems = [{"problem": problem, "remedy": remedy} for problem, remedy in machine.problems()]
    refused, device_paths = None, {}
    try:
        selection = Selection(load().links, machine, lambda: 0.0)
        device_paths = selection.device_paths()
        if root == Path("/"):
            start_links(selection)
        problems += [{"problem": why, "remedy": _NAME_IT} for why in selection.unusable.values()]
    except (ConfigurationError, TransportError) as error:
        refused = str(error)
    if as_json:
        found = {"gpu_memory": device_paths, "problems": problems, "configuration_error": refused}
        typer.echo(json.dumps({**_report(machine), **found}))
    else:
        _show(Console(), machine, problems, refused, device_paths)
    if refused is not None:
        raise typer.Exit(1)


def start_links(selection: Selection) -> None:
    """What an agent does before its first link. Raises a `TransportError` where an agent would."""
    transport = MixedTransport(Identity(0, b""), selection)
    try:
        transport.start()
    finally:
        transport.close()


def _report(machine: LinkHardware) -> dict[str, Any]:
    return {
        **dataclasses.asdict(machine),
        "rdma": machine.rdma,
        "configuration": os.environ.get(CONFIG),
    }


def _show(
    console: Console,
    machine: LinkHardware,
    problems: list[dict[str, str]],
    refused: str | None,
    device_paths: dict[str, str],
) -> None:
    ucx = machine.ucx
    if ucx.failure:
        console.print("UCX: none", highlight=False, markup=False)
    else:
        console.print(f"UCX {ucx.version} ({', '.join(ucx.transports)})", highlight=False, markup=False)
        console.print(f"  from {ucx.path}", highlight=False, markup=False, soft_wrap=True)
        console.print(f"  devices: {', '.join(ucx.devices)}", highlight=False, markup=False, soft_wrap=True)
    if machine.devices:
        table = Table("RDMA device", "port", "state", "layer", "Gbit/s", "NUMA", "network")
        for device in machine.devices:
            for port in device.ports:
                numa = str(device.numa_node) if device.numa_node >= 0 else "-"
                state = f"{port.state.lower()}, {port.physical_state.lower()}"
                names = ", ".join(port.net_devices)
                rate = f"{port.rate / 1e9:g}"
                table.add_row(device.name, str(port.number), state, port.link_layer, rate, numa, names)
        console.print(table)
    else:
        console.print("RDMA devices: none")
    _show_gpus(console, machine)
    for transport, path in device_paths.items():
        console.print(f"memory of GPUs over {transport}: {path}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"links to other hosts: {'RDMA can be used' if machine.rdma else 'TCP'}")
    console.print(
        f"limits: {_limit(machine.open_files)} file descriptors, {_limit(machine.locked_memory)} bytes of memory locked"
    )
    if not problems and refused is None:
        console.print("no problems found")
    for found in problems:
        console.print(f"- {found['problem']}\n  → {found['remedy']}", highlight=False, markup=False, soft_wrap=True)
    if refused is not None:
        console.print(
            f"- the configuration does not work on this host: {refused}", highlight=False, markup=False, soft_wrap=True
        )


def _show_gpus(console: Console, machine: LinkHardware) -> None:
    gpus = machine.gpus
    if not gpus.devices:
        why = f" ({gpus.failure})" if gpus.failure else ""
        console.print(f"GPUs: none{why}", highlight=False, markup=False, soft_wrap=True)
        return
    cards = {uuid: f"{card} ({far})" for uuid, card, far in machine.nearest_cards}
    table = Table("GPU", "memory", "bus", "NUMA", "NVLinks", "peers", "nearest card")
    for gpu in gpus.devices:
        links = sum(gpu.nvlinks.values()) + gpu.switch_links
        numa = str(gpu.numa_node) if gpu.numa_node >= 0 else "-"
        table.add_row(
            gpu.name,
            format_size(gpu.memory),
            gpu.bus_id,
            numa,
            str(links),
            str(len(gpu.peers)),
            cards.get(gpu.uuid, "-"),
        )
    console.print(table)


def _limit(value: int) -> str:
    return "unlimited" if value < 0 else str(value)
