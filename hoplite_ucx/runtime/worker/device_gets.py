"""Gets whose arrays are to lie on a CUDA device. They block: the async twin makes them on a thread."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hoplite_ucx.runtime.objects.device_values import devices_for
from hoplite_ucx.runtime.worker.calls import Wish, value_on, wish_on
from hoplite_ucx.runtime.worker.checks import list_of_outs, list_of_refs
from hoplite_ucx.runtime.worker.client import Client
from hoplite_ucx.runtime.worker.refs import ObjectRef


def get_on(
    device: int, ref: Any, copy: object, like: object, out: Any, progress: object
) -> Callable[[Client, float | None], Any]:
    """What such a get does, with what was asked for checked. Several refs come one after the other: each is moved by
    the device's own engines."""
    devices = devices_for(device)
    if isinstance(ref, ObjectRef):
        wish = wish_on(device, copy, like, out, progress)
        return lambda client, timeout: _get(client, ref, device, devices, wish, timeout)
    refs = list_of_refs(ref)
    wishes = [wish_on(device, copy, like, each, progress) for each in list_of_outs(out, len(refs))]
    return partial(_get_all, refs, device, devices, wishes)


def _get(
    client: Client, ref: ObjectRef, device: int, devices: tuple[bytes, ...], wish: Wish, timeout: float | None
) -> Any:
    return value_on(ref, *client.get_on_device(ref.binary, timeout, devices), device, wish)


def _get_all(
    refs: list[ObjectRef],
    device: int,
    devices: tuple[bytes, ...],
    wishes: list[Wish],
    client: Client,
    timeout: float | None,
) -> list[Any]:
    ends = None if timeout is None else time.monotonic() + timeout
    found = []
    for ref, wish in zip(refs, wishes, strict=True):
        left = None if ends is None else max(0.0, ends - time.monotonic())
        found.append(_get(client, ref, device, devices, wish, left))
    return found
