"""The messages between a worker and its agent, over their Unix session.

Frames of MessagePack behind a length of four bytes; a reply that hands out memory carries its descriptor beside it. A
worker's call has a number, which every message about it repeats. Both ends belong to one user on one host and to one
build, yet every length is bounded and every form is checked before anything is done.
"""

import hashlib
import struct
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from hoplite_ucx.protocol.errors import Failure
from hoplite_ucx.protocol.ids import Ref
from hoplite_ucx.protocol.messages import (
    MAX_DESCRIBED,
    MAX_TEXT,
    Bytes,
    Description,
    Layout,
    Number,
    Operation,
    Text,
    malformed,
)
from hoplite_ucx.protocol.settings import Seconds, Settings
from hoplite_ucx.runtime.settings import ProcessSettings

WIRE = 12
MAX_FRAME = 8 << 20
MAX_REFS = 100_000
"""The most refs in one request."""
MAX_IDLE = 1000
_LENGTH = struct.Struct("<I")

Timeout: TypeAlias = Annotated[float, Meta(ge=0)] | None
Refs: TypeAlias = Annotated[tuple[Ref, ...], Meta(max_length=MAX_REFS)]
WorkerId: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
DeviceId: TypeAlias = Annotated[bytes, Meta(max_length=16)]
"""The UUID of a CUDA device; empty for memory of the host."""
_MAX_DEVICES = 64


class _Request(Struct, frozen=True, array_like=True, tag=True):
    pass


class Hello(_Request, frozen=True):
    """The first frame of a session. `background`: the one session whose end means that the worker is gone."""

    wire: Number
    worker: WorkerId
    background: bool


class PutRequest(_Request, frozen=True):
    """Small objects come with their bytes; for others the agent answers with memory to fill. `fresh`: the ref was made
    for this put, so no other put or delete of it can exist. `by_hand`: the user fills the memory and keeps it; its
    descriptor is needed even if it is already mapped. `device`: the bytes are on this one, and memory there is best.
    `name`: what the ref was made from, for people."""

    call: Number
    ref: Ref
    size: Bytes
    layout: Layout
    data: bytes | None
    timeout: Timeout
    fresh: bool = False
    by_hand: bool = False
    device: DeviceId = b""
    name: Text = ""


class PutProgress(_Request, frozen=True):
    call: Number
    watermark: Bytes


class PutEnd(_Request, frozen=True):
    """Every byte is written, and this worker writes no more."""

    call: Number


class Cancel(_Request, frozen=True):
    """The caller gave up; it reads no more replies."""

    call: Number


class GetRequest(_Request, frozen=True):
    """`once`: do not wait for an object that is not available now; the timeout is for the transfer. `devices`: those
    whose memory this worker can map, the first of which it wants; none if it wants memory of the host."""

    call: Number
    ref: Ref
    timeout: Timeout
    once: bool = False
    devices: Annotated[tuple[DeviceId, ...], Meta(max_length=_MAX_DEVICES)] = ()


class WaitRequest(_Request, frozen=True):
    call: Number
    refs: Refs
    count: Number
    timeout: Timeout


class DeleteRequest(_Request, frozen=True):
    call: Number
    refs: Refs
    timeout: Timeout


class OwnRequest(_Request, frozen=True):
    """To be deleted when the worker is gone."""

    call: Number
    refs: Refs


class ReduceRequest(_Request, frozen=True):
    call: Number
    target: Ref
    sources: Refs
    op: Operation
    count: Number
    timeout: Timeout
    everywhere: bool = False
    """Every node that has a source will want the result."""
    name: Text = ""


class ContributorsRequest(_Request, frozen=True):
    call: Number
    ref: Ref
    timeout: Timeout


class DescribeRequest(_Request, frozen=True):
    call: Number
    refs: Annotated[tuple[Ref, ...], Meta(max_length=MAX_DESCRIBED)]
    timeout: Timeout


class StatusRequest(_Request, frozen=True):
    """With `history`, the report also lists the latest streams and how they ended."""

    call: Number
    history: bool = False


class IdleRequest(_Request, frozen=True):
    """Asks which objects nobody here has used for so long. Not more than `MAX_IDLE` are named."""

    call: Number
    seconds: Annotated[float, Meta(ge=0)]


class DirectoryRequest(_Request, frozen=True):
    """Asks for the address of the directory and for the token."""

    call: Number


class Ping(_Request, frozen=True):
    call: Number


class Released(_Request, frozen=True):
    """Mappings that are gone, and memory of abandoned puts, by their pins. `shared`: a fork since then may have given a
    copy to a child."""

    pins: tuple[tuple[Number, bool], ...]


Request: TypeAlias = (
    Hello
    | PutRequest
    | PutProgress
    | PutEnd
    | Cancel
    | GetRequest
    | WaitRequest
    | DeleteRequest
    | OwnRequest
    | ReduceRequest
    | ContributorsRequest
    | DescribeRequest
    | StatusRequest
    | IdleRequest
    | DirectoryRequest
    | Ping
    | Released
)


class _Reply(Struct, frozen=True, array_like=True, tag=True):
    pass


class Greeting(_Reply, frozen=True):
    """The agent's answer to `Hello`: which cluster this is, and what the client must know of its store."""

    cluster: Text
    agent: Text
    directory: Text
    inline_limit: Bytes
    small_limit: Bytes
    memory: Bytes
    joined: bool
    token_mark: Annotated[bytes, Meta(max_length=16)] = b""
    """Lets a worker check whether it was given this cluster's token."""
    private: bool = False
    """The cluster belongs to a program, and ends with it."""
    suspicion: Seconds = Settings().suspicion
    """The cluster's: how long the agent waits for the directory's word when a call's time is over."""
    quiet: Seconds = ProcessSettings().quiet
    """After so long without a word a worker asks whether the agent still runs."""


def token_mark(token: bytes, cluster: str) -> bytes:
    return hashlib.blake2b(token, key=cluster.encode()[:64], digest_size=16).digest()


class Space(_Reply, frozen=True):
    """Memory for a put: a mapping that the worker already has (`known`), or the descriptor beside this message, or
    both. It belongs to the worker until the put ends, or its pin is released. Memory of a device is unmapped by the
    worker before it says that the put has ended."""

    call: Number
    backing: Number
    capacity: Bytes
    known: bool
    pin: Number
    device: DeviceId = b""
    name: Text = ""


class Stored(_Reply, frozen=True):
    call: Number
    existing: bool


class Value(_Reply, frozen=True):
    """A get's value: the bytes, or a descriptor of `capacity` bytes that stays pinned under `pin`."""

    call: Number
    layout: Layout
    size: Bytes
    data: bytes | None
    pin: Number = 0
    capacity: Bytes = 0
    device: DeviceId = b""
    name: Text = ""


class Ready(_Reply, frozen=True):
    call: Number
    ready: Refs
    rest: Refs


class Done(_Reply, frozen=True):
    call: Number


class References(_Reply, frozen=True):
    call: Number
    refs: Refs


class Descriptions(_Reply, frozen=True):
    call: Number
    descriptions: tuple[Description, ...]


class Report(_Reply, frozen=True):
    call: Number
    status: dict[str, Any]


class DirectoryAt(_Reply, frozen=True):
    """Where the directory is, and the token for it; no address as long as the agent has not joined it. For the agent's
    own user."""

    call: Number
    address: Text | None
    token: Annotated[bytes, Meta(max_length=MAX_TEXT)] = b""
    incarnation: Number = 0
    """The incarnation of the directory that the agent has joined: one with a lower number has been replaced."""
    tls: bool = False
    """Whoever asks it needs a certificate."""

    def __repr__(self) -> str:
        return f"DirectoryAt({self.address}, incarnation {self.incarnation})"


class Refused(_Reply, frozen=True):
    call: Number
    failure: Failure


class Result(_Reply, frozen=True):
    """The answer to a reduce whose small result is here already. The worker may return it from its next get, unless
    `Outdated` comes before."""

    call: Number
    ref: Ref
    layout: Layout
    data: bytes


class Outdated(_Reply, frozen=True):
    """A `Result` that came on this session is not to be returned any more: it was deleted or lost, or the agent has no
    copy of it and would not hear of that."""

    ref: Ref


class Forget(_Reply, frozen=True):
    """To the background session: this mapping will not be used for puts again."""

    backing: Number


class Doubtful(_Reply, frozen=True):
    """To the background session: a session has ended on which these pins were given out. The worker releases those that
    it never read."""

    pins: tuple[Number, ...]


Reply: TypeAlias = (
    Greeting
    | Space
    | Stored
    | Value
    | Ready
    | Done
    | References
    | Descriptions
    | Report
    | DirectoryAt
    | Refused
    | Result
    | Outdated
    | Forget
    | Doubtful
)

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def frame(message: Request | Reply) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Takes arriving bytes and returns whole frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        frames = []
        start, end = 0, len(data)
        while end - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, start)
            if length > MAX_FRAME:
                raise malformed(f"a frame of {length} bytes is over the limit of {MAX_FRAME}").exception()
            begin = start + _LENGTH.size
            if begin + length > end:
                break
            frames.append(data[begin : begin + length])
            start = begin + length
        if start < end:
            self._rest = data[start:]
        return frames


def decode_request(data: bytes) -> Request:
    try:
        return _requests.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise malformed(str(error)).exception() from error


def decode_reply(data: bytes) -> Reply:
    try:
        return _replies.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise malformed(str(error)).exception() from error
