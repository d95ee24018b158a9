"""Every message survives the wire; nothing else that may come over it does harm."""

import math
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack

from hoplite_ucx.protocol import messages
from hoplite_ucx.protocol.errors import InvalidRequestError
from hoplite_ucx.protocol.ids import StreamId
from hoplite_ucx.protocol.messages import (
    Alive,
    Completed,
    Data,
    Heartbeat,
    Inline,
    Leave,
    Put,
    StreamCancel,
    ToDirectory,
    ToNode,
    ToPeer,
    Want,
    decode_to_directory,
    decode_to_node,
    decode_to_peer,
    encode,
)
from tests.tools.machines import ref, version
from tests.tools.strategies import message_of

DIRECTIONS = [
    (ToDirectory, decode_to_directory),
    (ToNode, decode_to_node),
    (ToPeer, decode_to_peer),
]
EVERY_MESSAGE = [(kind, decode) for union, decode in DIRECTIONS for kind in typing.get_args(union)]
NAMES = [kind.__name__ for kind, _ in EVERY_MESSAGE]
DECODERS = [decode for _, decode in DIRECTIONS]


def test_every_struct_of_the_module_stands_in_a_union() -> None:
    tagged = {kind for kind in vars(messages).values() if getattr(kind, "__struct_config__", None) is not None}
    sent = {kind for kind in tagged if kind.__struct_config__.tag is not None and not kind.__name__.startswith("_")}
    assert sent == {kind for kind, _ in EVERY_MESSAGE}


@pytest.mark.parametrize(("kind", "decode"), EVERY_MESSAGE, ids=NAMES)
@settings(max_examples=20)
@given(data=st.data())
def test_round_trip(kind: type, decode: typing.Callable[[bytes], object], data: st.DataObject) -> None:
    message = data.draw(message_of(kind))
    assert decode(encode(message)) == message


@pytest.mark.parametrize(("kind", "decode"), EVERY_MESSAGE, ids=NAMES)
@settings(max_examples=20)
@given(data=st.data())
def test_a_truncated_message_is_refused(
    kind: type, decode: typing.Callable[[bytes], object], data: st.DataObject
) -> None:
    frame = encode(data.draw(message_of(kind)))
    with pytest.raises(InvalidRequestError, match="malformed"):
        decode(frame[: data.draw(st.integers(0, len(frame) - 1))])


@pytest.mark.parametrize(("kind", "decode"), EVERY_MESSAGE, ids=NAMES)
@settings(max_examples=20)
@given(data=st.data())
def test_changed_bytes_give_a_message_or_a_typed_error(
    kind: type, decode: typing.Callable[[bytes], object], data: st.DataObject
) -> None:
    frame = bytearray(encode(data.draw(message_of(kind))))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    assert_accepted_or_refused(decode, bytes(frame))


@pytest.mark.parametrize("decode", DECODERS)
@given(frame=st.binary(max_size=200))
def test_random_bytes_give_a_message_or_a_typed_error(decode: typing.Callable[[bytes], object], frame: bytes) -> None:
    assert_accepted_or_refused(decode, frame)


def assert_accepted_or_refused(decode: typing.Callable[[bytes], object], frame: bytes) -> None:
    """Refused with the one error that is for it, or a message: then what it says can be said again."""
    try:
        message = decode(frame)
    except InvalidRequestError:
        return
    assert decode(encode(message)) == message  # type: ignore[arg-type]


@pytest.mark.parametrize("decode", DECODERS)
def test_a_frame_over_the_limit_is_not_looked_at(decode: typing.Callable[[bytes], object]) -> None:
    with pytest.raises(InvalidRequestError, match="over the limit"):
        decode(bytes(messages.MAX_FRAME + 1))


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    "frame", [b"\x91" * 100_000, b"\x81" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
)
def test_deep_nesting_and_lengths_that_lie_are_refused(decode: typing.Callable[[bytes], object], frame: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode(frame)


OUT_OF_BOUNDS = [
    ("a ref of 15 bytes", ["Want", bytes(15)]),
    ("a ref of 17 bytes", ["Want", bytes(17)]),
    ("a negative size", ["Put", 1, bytes(16), -1, b"", None]),
    ("a size beyond 62 bits", ["Put", 1, bytes(16), 1 << 62, b"", None]),
    ("a layout over its limit", ["Put", 1, bytes(16), 0, bytes((1 << 20) + 1), None]),
    ("inline bytes over their limit", ["Put", 1, bytes(16), 0, b"", bytes((1 << 20) + 1)]),
    ("a negative counter", ["Completed", [bytes(16), 1, -1]]),
    ("a rate of nothing", ["Join", 1, "", 0, 1, "", "", 0.0, 1.0, 1, 1]),
    ("no streams", ["Join", 1, "", 0, 1, "", "", 1.0, 1.0, 0, 1]),
    ("a host name over its limit", ["Join", 1, "", 1, "x" * 4097, "", 1.0, 1.0, 1, 1]),
    ("an unknown fault", ["StreamFailed", [bytes(16), 1, 1], 1, 0, 1, "bored", True]),
    ("another direction's message", ["Alive"]),
    ("an unknown message", ["Frobnicate", 1]),
    ("a message without its fields", ["StreamFailed"]),
    ("no tag", []),
    ("no message at all", None),
    ("a map", {"type": "Leave"}),
]


@pytest.mark.parametrize("content", [content for _, content in OUT_OF_BOUNDS], ids=[name for name, _ in OUT_OF_BOUNDS])
def test_what_is_out_of_bounds_is_refused(content: object) -> None:
    with pytest.raises(InvalidRequestError, match="malformed"):
        decode_to_directory(msgpack.encode(content))


V1, V2, V3 = ([bytes([number] * 16), 1, 1] for number in (1, 2, 3))
BAD_CUTS = [
    ("a stripe twice", ["Cut", V1, 20, [[V2, 10], [V2, 10]]]),
    ("a stripe of itself", ["Cut", V1, 20, [[V1, 10], [V2, 10]]]),
    ("a hole", ["Cut", V1, 21, [[V2, 10], [V3, 10]]]),
    ("more than all", ["Cut", V1, 19, [[V2, 10], [V3, 10]]]),
    ("an empty stripe", ["Cut", V1, 10, [[V2, 10], [V3, 0]]]),
    ("one stripe", ["Cut", V1, 10, [[V2, 10]]]),
    ("no stripes", ["Cut", V1, 0, []]),
    ("too many stripes", ["Cut", V1, 65, [[[number.to_bytes(16, "big"), 1, 1], 1] for number in range(65)]]),
]


@pytest.mark.parametrize("content", [content for _, content in BAD_CUTS], ids=[name for name, _ in BAD_CUTS])
def test_stripes_that_do_not_make_up_the_object_are_refused(content: object) -> None:
    assert isinstance(decode_to_node(msgpack.encode(["Cut", V1, 20, [[V2, 10], [V3, 10]]])), messages.Cut)
    with pytest.raises(InvalidRequestError, match="malformed"):
        decode_to_node(msgpack.encode(content))


RATES = [
    (decode_to_directory, lambda rate: ["Join", 1, "", 0, 1, "", "", rate, 1e9, 1, 1]),
    (decode_to_directory, lambda rate: ["Join", 1, "", 0, 1, "", "", 1e9, rate, 1, 1]),
    (decode_to_node, lambda rate: ["Place", [bytes(16), 1, 1], 1, 1, b"", 1, "", 1, rate]),
    (decode_to_peer, lambda rate: ["StreamRequest", [1, 1], [bytes(16), 1, 1], 0, 1, rate]),
]


@pytest.mark.parametrize("rate", [math.nan, math.inf, -1.0, 0.0, 1e-300, 1e300])
@pytest.mark.parametrize(("decode", "content"), RATES)
def test_rates_that_would_poison_an_account_are_refused(
    decode: typing.Callable[[bytes], object], content: typing.Callable[[float], object], rate: float
) -> None:
    assert decode(msgpack.encode(content(1e9)))
    with pytest.raises(InvalidRequestError):
        decode(msgpack.encode(content(rate)))


def test_messages_stay_small() -> None:
    """The directory handles tens of thousands a second."""
    assert len(encode(Leave())) < 10
    assert len(encode(Alive())) < 10
    assert len(encode(Heartbeat())) < 25
    assert len(encode(Want(ref(1)))) < 30
    assert len(encode(Completed(version(1)))) < 40
    assert len(encode(StreamCancel(StreamId(1 << 60, 1)))) < 40


def test_optional_fields_keep_their_value() -> None:
    empty, none = Put(1, ref(1), 0, b"", b""), Put(1, ref(1), 0, b"", None)
    assert decode_to_directory(encode(empty)) == empty
    assert decode_to_directory(encode(none)) == none
    assert empty != none


def test_limits_are_within_a_frame() -> None:
    [limit] = [meta.max_length for meta in typing.get_args(Data)[1:]]
    assert len(encode(Inline(version(1), b"", bytes(limit)))) < messages.MAX_FRAME
