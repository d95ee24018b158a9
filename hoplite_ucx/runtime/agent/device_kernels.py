"""Combining on a device: the kernel of a slot whose memory is there, and whether this agent can do that at all.

CuPy is imported, and kernels are compiled, on a thread of their own: both take seconds, which neither the loop nor a
slot's lock has. Until CuPy is there, slots combine on the host; a slot on a device waits for its own kernels.
"""

import importlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np

from hoplite_ucx.gpu import arithmetic
from hoplite_ucx.gpu.arithmetic import Arithmetic
from hoplite_ucx.protocol.messages import Operation
from hoplite_ucx.runtime.objects.kernels import Kernel, ufunc_name

_log = logging.getLogger("hoplite.agent")


class DeviceKernel(Kernel):
    """A kernel on arrays of CuPy. It is `ready` after `prepare`."""

    def __init__(self, layout: bytes, op: Operation, offset: int, device: int) -> None:
        super().__init__(layout, op, offset)
        self._device = device
        self._divides = op is Operation.MEAN
        self._name = ufunc_name(op)
        self._arithmetic: Arithmetic | None = None
        self._stream: Any = None
        self._on_device: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.ready = self.failure is not None

    def dtypes(self) -> set[np.dtype[Any]]:
        return {dtype for _, _, dtype in self._runs}

    def supported(self) -> bool:
        """Whether the device combines all of these dtypes."""
        return all(map(arithmetic.supported, self.dtypes()))

    def prepare(self) -> None:
        """Import CuPy and compile; not where somebody waits."""
        cupy = importlib.import_module("cupy")
        made = Arithmetic(self._device, self._name)
        made.prepare(self.dtypes(), divides=self._divides)
        self._on_device = partial(cupy.cuda.Device, self._device)
        with self._on_device():
            self._stream = cupy.cuda.Stream(non_blocking=True)
        self._arithmetic = made
        self._ufunc = made.apply
        self.ready = True

    def combine(self, out: Any, left: Any, right: Any, start: int, end: int, shift: int = 0) -> None:
        with self._on_device(), self._stream:
            super().combine(out, left, right, start, end, shift)

    def divide(self, out: Any, start: int, end: int, divisor: int) -> None:
        assert self._arithmetic is not None
        with self._on_device(), self._stream:
            for low, high, dtype in self._between(start, end):
                self._arithmetic.divide(out[low:high].view(dtype), divisor)

    def settle(self) -> None:
        """Wait until what was combined is there for others, and what was read may be written to."""
        self._stream.synchronize()


class DeviceCombining:
    """Whether this agent combines on devices, and the thread that prepares kernels."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "hoplite-compile")
        self._asked = False
        self.usable = False
        self.reason = "no reduction has had a part on a device"
        self.slots = 0
        """How many have combined on a device so far."""

    def status(self) -> dict[str, Any]:
        return {"combines_on_host_because": self.reason, "slots_on_devices": self.slots}

    def ask(self) -> bool:
        """Whether slots may combine on devices now. The first who asks has CuPy imported, for the next ones."""
        if not self._asked:
            self._asked = True
            self.reason = "CuPy is being imported"
            self._submit(self._load)
        return self.usable

    def prepare(self, kernel: DeviceKernel, ready: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        def run() -> None:
            try:
                kernel.prepare()
            except Exception as error:  # CuPy's own, of which there are many
                failed(error)
            else:
                ready()

        self._submit(run)

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _load(self) -> None:
        try:
            Arithmetic(0, "add").prepare([np.dtype(np.float32)], divides=False)
        except Exception as error:  # not installed, or it does not work here
            self.reason = f"reductions combine on the host: {error}"
            _log.warning("%s", self.reason)
        else:
            self.usable, self.reason = True, ""

    def _submit(self, work: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the node is closing
            self._executor.submit(work)
