"""Objects that users fill in place, in memory of the store: a put without a copy."""

import contextlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hoplite_ucx.protocol.errors import HopliteError
from hoplite_ucx.runtime.objects import values
from hoplite_ucx.runtime.objects.device_values import zeros_on
from hoplite_ucx.runtime.objects.layouts import Array, ArrayLayout, encode_layout
from hoplite_ucx.runtime.worker.checks import (
    about,
    check_array,
    check_timeout,
    invalid,
    optional_ref,
    ref_for_object,
)
from hoplite_ucx.runtime.worker.client import OpenPut
from hoplite_ucx.runtime.worker.membership import Membership
from hoplite_ucx.runtime.worker.refs import ObjectRef
from hoplite_ucx.runtime.worker.scopes import note_made


class Draft:
    """An object being filled: write into `array`, then `seal()`.

    In a `with` block it is sealed at the end, or abandoned if the block fails.
    """

    def __init__(
        self, of: Membership, ref: ObjectRef, array: Array, put: OpenPut | None, timeout: float | None
    ) -> None:
        """An array without an open put is small or on a device, and is copied into the store when it is sealed."""
        self._of = of
        self.ref = ref
        self.array = array
        self._put = put
        self._timeout = timeout
        self._over = False

    @property
    def timeout(self) -> float | None:
        """What is left for the agent's answers: `create` and everything after it share one time limit. The time in
        which the user fills the array does not count."""
        return self._timeout if self._put is None else self._put.left

    def advance(self, nbytes: int) -> None:
        """Report that this many leading bytes are final: receivers of the object may get them already.

        The bytes of an incomplete page are forwarded with the next ones, or at the end. Forwarded bytes are safe as
        after `seal`: later writes to them are not visible to others. If this fails, the draft is abandoned.

        Raises `InvalidRequestError` for a number beyond the array, and for a draft that was sealed or abandoned;
        `GetTimeoutError` if the agent does not answer in what is left of the timeout of `create`; `ClosedError` if the
        agent is gone.
        """
        given: object = nbytes
        if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= self.array.nbytes:
            detail = f"nbytes is {nbytes!r}, and must be from 0 to this object's {self.array.nbytes} bytes"
            raise about(invalid(detail, "count the leading bytes that are final"), self.ref)
        self._check_open()
        if self._put is not None:
            try:
                self._put.advance(nbytes)
            except BaseException:  # if it was interrupted, it is unknown what the agent has read
                self.abort()
                raise

    def seal(self) -> ObjectRef:
        """Every byte is written. The array is read-only from now on.

        Views of it that were made before can still be written to, but other processes do not see that: these pages are
        private from now on. Only a child that was forked while the draft was open still shares the memory with others,
        and must not write to it after this.

        Raises what `put` raises, and `InvalidRequestError` if it was sealed or abandoned already.
        """
        self._check_open()
        self._over = True
        if isinstance(self.array, np.ndarray):
            self.array.flags.writeable = False
        if self._put is not None:
            self._put.finish()
        else:
            self._of.client.put(self.ref.binary, values.encode(self.array), self.timeout)
        return note_made(self._of, self.ref)

    def abort(self) -> None:
        """Abandon it: nothing was put. Receivers that have bytes of it already get `PutAbortedError`. Raises
        nothing."""
        if not self._over:
            self._over = True
            if self._put is not None:
                self._put.abort()

    def _check_open(self) -> None:
        if self._over:
            raise about(invalid("this put was already sealed or abandoned", "create another one"), self.ref)

    def __enter__(self) -> "Draft":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None:
            self.abort()
        elif not self._over:
            self.seal()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.abort()


def open_draft(
    of: Membership,
    shape: int | Sequence[int],
    dtype: npt.DTypeLike,
    ref: ObjectRef | None,
    timeout: float | None,
    device: int | None = None,
) -> Draft:
    ours = of.client
    seconds = check_timeout(timeout)
    name = optional_ref(ref)
    try:
        leaf = check_array(shape, dtype)
    except HopliteError as error:
        raise about(error, name) from error
    if device is not None:
        return Draft(of, name, zeros_on(device, leaf), None, seconds)
    size = leaf.nbytes()
    if size <= ours.greeting.small_limit:
        return Draft(of, name, np.zeros(leaf.shape, leaf.numpy_dtype()), None, seconds)
    name = ref_for_object(ref, size, ours.greeting.inline_limit)
    open_put = ours.begin_put(name.binary, size, encode_layout(ArrayLayout(leaf)), seconds)
    return Draft(of, name, leaf.on(open_put.memory), open_put, seconds)


def one_draft(draft: object) -> Draft:
    if not isinstance(draft, Draft):
        raise invalid(f"seal takes what create returned, not a {type(draft).__name__}", "call create() first")
    return draft
