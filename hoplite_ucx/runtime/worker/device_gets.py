"""Gets whose arrays are to lie on a CUDA device. They block: the async twin makes them on a thread."""

import time
from typing import Any

from hoplite_ucx.runtime.objects.device_values import devices_for
from hoplite_ucx.runtime.worker.calls import value_on
from hoplite_ucx.runtime.worker.checks import invalid, list_of_outs, list_of_refs
from hoplite_ucx.runtime.worker.client import Client
from hoplite_ucx.runtime.worker.refs import ObjectRef


def check_options(like: object, progress: object) -> None:
    if like not in (None, "cupy") or progress is not None:
        raise invalid("device= gives arrays of CuPy, without progress", "leave like= and progress= out")


def get_on(client: Client, ref: Any, device: int, copy: bool, out: Any, timeout: float | None) -> Any:
    """One after the other: each is moved by the device's own engines."""
    devices = devices_for(device)
    if isinstance(ref, ObjectRef):
        return value_on(ref, *client.get_on_device(ref.binary, timeout, devices), device, copy, out)
    refs = list_of_refs(ref)
    outs = list_of_outs(out, len(refs))
    ends = None if timeout is None else time.monotonic() + timeout
    found = []
    for name, into in zip(refs, outs, strict=True):
        left = None if ends is None else max(0.0, ends - time.monotonic())
        found.append(value_on(name, *client.get_on_device(name.binary, left, devices), device, copy, into))
    return found
