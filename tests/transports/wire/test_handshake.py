"""The handshake alone: who is let in, who is not, and that proofs fit one connection and one role."""

import socket
import threading
from collections.abc import Callable, Generator

import pytest

from hoplite_ucx.transports.errors import (
    HandshakeError,
    TransportError,
    UnreachableError,
    WrongClusterError,
    WrongPeerError,
    WrongTokenError,
    WrongVersionError,
)
from hoplite_ucx.transports.wire.addresses import check_token, format_address, parse_address
from hoplite_ucx.transports.wire.handshake import Identity, Kind, Peer, Steps, client, run_blocking, server


class Talk:
    """Runs the two sides against each other, and keeps what each said."""

    def __init__(self, left: Steps, right: Steps, change: Callable[[int, bytes], bytes] = lambda _, data: data) -> None:
        self.said: tuple[list[bytes], list[bytes]] = ([], [])
        self.results: list[Peer | TransportError | None] = [None, None]
        sides = [left, right]
        wants: list[int] = [0, 0]
        boxes = [b"", b""]
        answers: list[bytes | None] = [None, None]
        moved = True
        while moved:
            moved = False
            for side in (0, 1):
                while self.results[side] is None:
                    if wants[side] and len(boxes[side]) < wants[side]:
                        break
                    if wants[side]:
                        answers[side], boxes[side] = boxes[side][: wants[side]], boxes[side][wants[side] :]
                        wants[side] = 0
                    moved = True
                    try:
                        answer = answers[side]
                        step = next(sides[side]) if answer is None else sides[side].send(answer)
                    except StopIteration as done:
                        self.results[side] = done.value
                    except TransportError as error:
                        self.results[side] = error
                    else:
                        if isinstance(step, bytes):
                            self.said[side].append(step)
                            boxes[1 - side] += change(side, step)
                            answers[side] = b""
                        else:
                            wants[side] = step


A = Identity(1, b"token", b"cluster", b"here")
B = Identity(2, b"token", b"cluster", b"there")
EVERY = frozenset(Kind)


def test_both_sides_learn_who_the_other_is() -> None:
    talk = Talk(client(A, Kind.PEER, "b:1", expect=2), server(B, EVERY, "a:1"))
    assert talk.results == [
        Peer("b:1", 2, Kind.PEER, b"cluster", b"there"),
        Peer("a:1", 1, Kind.PEER, b"cluster", b"here"),
    ]


def test_the_token_is_never_sent() -> None:
    talk = Talk(client(A, Kind.PEER, "b:1"), server(B, EVERY, "a:1"))
    assert all(b"token" not in piece for said in talk.said for piece in said)


@pytest.mark.parametrize(
    ("mine", "theirs", "expect", "error"),
    [
        (A, Identity(2, b"other"), None, WrongTokenError),
        (A, Identity(2, b""), None, WrongTokenError),
        (A, Identity(2, b"token", b"elsewhere"), None, WrongClusterError),
        (A, Identity(2, b"token", b"cluster", version=7), None, WrongVersionError),
    ],
)
def test_both_sides_refuse(mine: Identity, theirs: Identity, expect: int | None, error: type) -> None:
    talk = Talk(client(mine, Kind.PEER, "b:1", expect), server(theirs, EVERY, "a:1"))
    for result, where in zip(talk.results, ("b:1", "a:1"), strict=True):
        assert isinstance(result, error)
        assert isinstance(result, TransportError)
        assert where in str(result)
        assert result.remedy in str(result)


def test_who_has_no_token_reads_so_and_the_other_side_how_to_let_it_in() -> None:
    talk = Talk(client(Identity(1, b""), Kind.CONTROL, "b:1"), server(B, EVERY, "a:1"))
    assert "no cluster token was found here" in str(talk.results[0])
    assert "the peer did not prove this cluster's token" in str(talk.results[1])
    assert "copy this cluster's token file" in str(talk.results[1])


def test_an_unknown_cluster_fits_any() -> None:
    talk = Talk(client(Identity(1, b"token"), Kind.CONTROL, "b:1"), server(B, EVERY, "a:1"))
    assert isinstance(talk.results[0], Peer)
    assert talk.results[0].cluster == b"cluster"


def test_another_node_than_expected() -> None:
    talk = Talk(client(A, Kind.PEER, "b:1", expect=3), server(B, EVERY, "a:1"))
    assert isinstance(talk.results[0], WrongPeerError)


def test_a_kind_that_is_not_served() -> None:
    talk = Talk(client(A, Kind.BULK, "b:1"), server(B, {Kind.PEER}, "a:1"))
    assert isinstance(talk.results[0], WrongPeerError)
    assert isinstance(talk.results[1], WrongPeerError)


def test_every_flipped_bit_is_noticed() -> None:
    clean = Talk(client(A, Kind.PEER, "b:1"), server(B, EVERY, "a:1"))
    lengths = [sum(map(len, said)) for said in clean.said]
    for side in (0, 1):
        for at in range(lengths[side]):
            seen = 0

            def flip(speaker: int, data: bytes, side: int = side, at: int = at) -> bytes:
                nonlocal seen
                if speaker != side:
                    return data
                start, seen = seen, seen + len(data)
                if not start <= at < seen:
                    return data
                changed = bytearray(data)
                changed[at - start] ^= 1
                return bytes(changed)

            talk = Talk(client(A, Kind.PEER, "b:1"), server(B, EVERY, "a:1"), flip)
            assert not all(isinstance(result, Peer) for result in talk.results), f"byte {at} of side {side}"


def test_a_reflected_proof_is_refused() -> None:
    """Somebody without the token says to the client whatever it says itself."""

    def mirror() -> Generator[bytes | int, bytes, Peer]:
        hello = yield 42
        yield hello
        proven = yield 34
        claims = yield int.from_bytes(proven[32:], "little")
        yield b"\0" + proven + claims
        raise HandshakeError("done", "", "")

    talk = Talk(client(A, Kind.PEER, "b:1"), mirror())
    assert isinstance(talk.results[0], WrongTokenError)


def test_a_replayed_client_is_refused() -> None:
    said = Talk(client(A, Kind.PEER, "b:1"), server(B, EVERY, "a:1")).said[0]

    def replay() -> Generator[bytes | int, bytes, Peer]:
        yield said[0]
        yield 42
        yield said[1]
        raise HandshakeError("done", "", "")

    talk = Talk(replay(), server(B, EVERY, "a:1"))
    assert isinstance(talk.results[1], WrongTokenError)


def test_slow_and_silent_peers_have_little_time() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stop = threading.Event()

        def drip() -> None:
            while not stop.wait(0.05):
                try:
                    theirs.send(b"h")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(UnreachableError, match="handshake"):
            run_blocking(server(B, EVERY, "a:1"), ours, "a:1", 0.3)
        stop.set()
        thread.join()


def test_claims_are_bounded() -> None:
    def shouter() -> Generator[bytes | int, bytes, Peer]:
        hello = Talk(client(A, Kind.PEER, "b:1"), server(B, EVERY, "a:1")).said[0][0]
        yield hello
        yield 42
        yield b"\0" * 32 + b"\xff\xff"
        raise HandshakeError("done", "", "")

    talk = Talk(shouter(), server(B, EVERY, "a:1"))
    assert isinstance(talk.results[1], HandshakeError)


@pytest.mark.parametrize(("node", "cluster", "info"), [(-1, b"", b""), (1 << 64, b"", b""), (1, b"c" * 65, b"")])
def test_bad_identities(node: int, cluster: bytes, info: bytes) -> None:
    with pytest.raises(ValueError, match=r"at most|must be"):
        Identity(node, b"", cluster, info)


def test_addresses() -> None:
    assert parse_address("198.18.0.1:7777") == ("198.18.0.1", 7777)
    assert parse_address("[::1]:80") == ("::1", 80)
    assert format_address("::1", 80) == "[::1]:80"
    for bad in ("", "host", "host:", ":1", "::1:80", "host:port", "host:70000", "host:-1", "host:\u0661"):
        with pytest.raises(ValueError, match="not an address"):
            parse_address(bad)


def test_no_token_on_loopback_only() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        check_token(b"", host)
    check_token(b"secret", "0.0.0.0")
    for host in ("0.0.0.0", "198.18.0.1", "::", "example"):
        with pytest.raises(WrongTokenError, match="HOPLITE_TOKEN"):
            check_token(b"", host)
