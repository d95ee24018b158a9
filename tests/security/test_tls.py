"""TLS on and off: sessions and links over it, who is refused, and what is said of certificates that are no good."""

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

import hoplite_ucx as hoplite
from hoplite_ucx.transports.configuration import ConfigurationError, TlsFiles, load
from hoplite_ucx.transports.errors import TransportError, WrongTlsError, WrongTokenError
from hoplite_ucx.transports.interface import Fault
from hoplite_ucx.transports.mixed_transport import open_transport
from hoplite_ucx.transports.testing.conformance import CHECKS, Maker
from hoplite_ucx.transports.testing.conformance.tools import Receiving
from hoplite_ucx.transports.testing.tcp_endpoint import TcpEndpoint, TlsEndpoint
from hoplite_ucx.transports.wire.addresses import parse_address, socket_address
from hoplite_ucx.transports.wire.handshake import Identity, Kind, client, run_blocking
from hoplite_ucx.transports.wire.session import Listener, Session, connect
from hoplite_ucx.transports.wire.tls import Tls
from tests.runtime.launch.test_service import run as command
from tests.runtime.launch.test_service import service
from tests.tools.certificates import NEEDS_OPENSSL, Authority, variables
from tests.tools.links import be_patient, run_check
from tests.tools.waiting import HANG, eventually

pytestmark = NEEDS_OPENSSL

TOKEN = b"a token"
SECRET = b"bytes that nobody else may read " * 1000


# --- certificates -----------------------------------------------------------------------------------------------


def test_the_configuration_names_certificates(tmp_path: Path) -> None:
    path = tmp_path / "hoplite.toml"
    path.write_text('[tls]\ncertificate = "node.pem"\nkey = "/keys/node.key"\nca = "ca.pem"\n')
    found = load(path, {"HOPLITE_TLS_CA": "/other/ca.pem"}).certificates
    assert found is not None
    assert (found.certificate, found.key) == (tmp_path / "node.pem", Path("/keys/node.key"))
    assert found.ca == Path("/other/ca.pem")
    assert load(None, {}).certificates is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('certificate = "a"\nkey = "b"', "tls.ca: is missing"),
        ('certificate = ""\nkey = "b"\nca = "c"', "is not a name"),
        ("certificate = 3", "is not a name"),
        ('certificat = "a"', "is unknown"),
    ],
)
def test_a_configuration_that_makes_no_sense(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "hoplite.toml"
    path.write_text(f"[tls]\n{text}\n")
    with pytest.raises(ConfigurationError, match=says):
        load(path, {})


def test_bad_certificates_are_told_at_the_start(authority: Authority, files: TlsFiles, tmp_path: Path) -> None:
    other = Authority.make(tmp_path, "other")
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"no certificate")
    garbage.chmod(0o600)
    open_key = tmp_path / "open.key"
    open_key.write_bytes(files.key.read_bytes())
    open_key.chmod(0o644)
    late = replace(authority.issue("late", days=0))
    cases = [
        (replace(files, certificate=tmp_path / "none"), "tls.certificate: cannot be read"),
        (replace(files, key=tmp_path / "none"), "tls.key: cannot be read"),
        (replace(files, ca=tmp_path / "none"), "tls.ca: cannot be read"),
        (replace(files, certificate=garbage), "tls.certificate: .* must be a matching pair"),
        (replace(files, key=garbage), "tls.certificate: .* must be a matching pair"),
        (replace(files, ca=garbage), "tls.ca: is not a certificate"),
        (replace(files, key=other.issue("stranger").key), "tls.certificate: .*key values mismatch"),
        (replace(files, key=open_key), "tls.key: is open to every user"),
        (replace(files, ca=other.certificate), "tls.certificate: is not accepted by tls.ca"),
        (authority.issue("locked", password="a password"), "tls.certificate: .*without a password"),
        (late, "tls.certificate: is not accepted by tls.ca: certificate has expired"),
    ]
    for wrong, says in cases:
        with pytest.raises(ConfigurationError, match=says) as caught:
            Tls(wrong)
        assert caught.value.remedy


def test_ucx_is_not_used_beside_tls(files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_LINKS_TRANSPORT", "ucx")
    with pytest.raises(ConfigurationError, match="UCX links do not support TLS"):
        open_transport(Identity(1, TOKEN, tls=Tls(files)), load())


# --- sessions ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(work, HANG))

    return run


class Echo:
    """A listener that sends every frame back."""

    def __init__(self, tls: Tls | None) -> None:
        self.refused: list[TransportError] = []
        self.sessions: list[Session] = []
        self._listener = Listener(
            Identity(1, TOKEN, tls=tls), {Kind.PEER: self._accept}, on_refused=self.refused.append
        )

    def _accept(self, session: Session) -> None:
        self.sessions.append(session)
        session.on_frame = session.send

    async def __aenter__(self) -> "Echo":
        self.address = await self._listener.start("127.0.0.1")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.close()
        for session in self.sessions:
            session.abort()
        await asyncio.sleep(0.05)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake of a busy machine may take its time."""
    monkeypatch.setattr("hoplite_ucx.transports.wire.session.HANDSHAKE_SECONDS", HANG / 3)


@contextmanager
def tap(address: str) -> Iterator[tuple[str, bytearray]]:
    """Stands between two sides, and keeps all that they say."""
    heard = bytearray()
    listening = socket.create_server(("127.0.0.1", 0))
    threads = []

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                heard.extend(data)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with suppress(OSError):
            near, _ = listening.accept()
            with near, socket.create_connection(parse_address(address)) as far:
                other = threading.Thread(target=pump, args=(far, near))
                other.start()
                pump(near, far)
                other.join()

    threads.append(threading.Thread(target=serve))
    threads[0].start()
    try:
        yield socket_address(listening.getsockname()), heard
    finally:
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        threads[0].join(HANG)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("secure", [True, False])
def test_what_a_session_says_is_seen_only_without_tls(run: Callable[..., None], files: TlsFiles, secure: bool) -> None:
    tls = Tls(files) if secure else None

    async def work() -> None:
        async with Echo(tls) as echo:
            frames = [SECRET, b"", b"x" * (3 << 20), b"last"]
            came: list[bytes] = []
            all_came = asyncio.Event()

            def on_frame(frame: bytes) -> None:
                came.append(frame)
                if len(came) == len(frames):
                    all_came.set()

            def made(session: Session) -> None:
                session.on_frame = on_frame

            with tap(echo.address) as (address, heard):
                session = await connect(address, Identity(2, TOKEN, tls=tls), Kind.PEER, made)
                for frame in frames:
                    session.send(frame)
                await all_came.wait()
                session.close()
                await asyncio.sleep(0.1)
            assert came == frames
            assert (SECRET[:64] in heard) is not secure
            assert echo.refused == []

    run(work())


@pytest.mark.usefixtures("patient")
def test_one_side_with_tls_and_one_without(run: Callable[..., None], files: TlsFiles) -> None:
    async def work() -> None:
        for theirs, mine in ((Tls(files), None), (None, Tls(files))):
            async with Echo(theirs) as echo:
                with pytest.raises(WrongTlsError, match=r"uses TLS, and .* does not"):
                    await connect(echo.address, Identity(2, TOKEN, tls=mine), Kind.PEER, lambda _: None)
                assert isinstance(echo.refused[0], WrongTlsError)

    run(work())


@pytest.mark.usefixtures("patient")
def test_certificates_of_another_authority(run: Callable[..., None], files: TlsFiles, tmp_path: Path) -> None:
    """Also if one side would accept the other, both must."""
    other = Authority.make(tmp_path, "other")
    stranger = other.issue("stranger")
    both = tmp_path / "both.pem"
    both.write_bytes(files.ca.read_bytes() + other.certificate.read_bytes())

    async def work() -> None:
        for theirs, mine in (
            (files, stranger),
            (files, replace(stranger, ca=both)),  # the client would accept the server, and is refused itself
            (replace(files, ca=both), stranger),
        ):
            async with Echo(Tls(theirs)) as echo:
                made: list[Session] = []
                with pytest.raises(WrongTlsError):
                    await connect(echo.address, Identity(2, TOKEN, tls=Tls(mine)), Kind.PEER, made.append)
                assert made == []
                async with asyncio.timeout(HANG):
                    while not echo.refused:
                        await asyncio.sleep(0.01)
                assert isinstance(echo.refused[0], WrongTlsError)
                assert echo.sessions == []

    run(work())


@pytest.mark.usefixtures("patient")
def test_a_certificate_does_not_replace_the_token(run: Callable[..., None], files: TlsFiles) -> None:
    tls = Tls(files)

    async def work() -> None:
        async with Echo(tls) as echo:
            with pytest.raises(WrongTokenError):
                await connect(echo.address, Identity(2, b"wrong", tls=tls), Kind.PEER, lambda _: None)

    run(work())


@pytest.mark.parametrize("after", [b"", b"\xff" * 5000, b"\x16\x03\x01\x02\x00\x01\x00\x01"])
def test_silence_and_garbage_instead_of_tls(run: Callable[..., None], files: TlsFiles, after: bytes) -> None:
    """Who has the token and then does not go on with TLS is let go of in time, and others are served meanwhile."""
    tls = Tls(files)

    async def work() -> None:
        async with Echo(tls) as echo:
            loop = asyncio.get_running_loop()
            with socket.create_connection(parse_address(echo.address)) as sock:
                steps = client(Identity(2, TOKEN, tls=tls), Kind.PEER, echo.address)
                await loop.run_in_executor(None, run_blocking, steps, sock, echo.address)
                sock.sendall(after)
                session = await connect(echo.address, Identity(3, TOKEN, tls=tls), Kind.PEER, lambda _: None)
                assert session.open
                async with asyncio.timeout(HANG):
                    while not echo.refused:
                        await asyncio.sleep(0.01)
                session.close()
                await asyncio.sleep(0.05)

    run(work())


# --- links ------------------------------------------------------------------------------------------------------


@pytest.fixture
def configured(files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)
    for name, value in variables(files).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_conformance(monkeypatch: pytest.MonkeyPatch, check: Callable[[Maker], None]) -> None:
    run_check(monkeypatch, check, TlsEndpoint)


@pytest.mark.usefixtures("configured")
def test_links_with_and_without_tls_do_not_meet() -> None:
    lost: list[Exception] = []
    with TlsEndpoint(1) as a, TcpEndpoint(2, on_lost=lambda *why: lost.append(why[2])) as b:
        Receiving(b, 1, a.address, (2, 1), 1000)
        eventually(lambda: lost and a.refused)
        assert isinstance(lost[0], WrongTlsError)
        assert isinstance(a.refused[0], WrongTlsError)


@pytest.mark.usefixtures("configured")
def test_a_link_on_which_tls_cannot_begin_closes_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_tls: Tls, sock: socket.socket, *, server_side: bool) -> None:
        """As `ssl` fails when memory is short: it has taken the descriptor by then."""
        sock.close()
        raise ssl.SSLError("on purpose")

    monkeypatch.setattr(Tls, "wrap", fail)
    with TlsEndpoint(1) as a, TlsEndpoint(2) as b:
        assert Receiving(b, 1, a.address, (2, 1), 1000).wait() == (0, Fault.BROKEN)


def test_a_connection_that_ended_before_tls(files: TlsFiles) -> None:
    """It is refused like any other, and its descriptor is closed."""
    tls = Tls(files)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        far = socket.create_connection(listening.getsockname())
        near, _ = listening.accept()
        far.sendall(b"something that was not read")
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        far.close()
        with tls.wrap(near, server_side=False) as wrapped, pytest.raises(WrongTlsError, match="not connected"):
            wrapped.greet_server("there", 1.0)


# --- all of it --------------------------------------------------------------------------------------------------


def test_a_cluster_over_tls(files: TlsFiles) -> None:
    with (
        service("--head", "--port", "0", **variables(files)) as (_, report),
        service("--address", report["address"], **variables(files)) as (_, other),
    ):
        value = np.random.default_rng(1).integers(0, 256, 20 << 20, np.uint8)
        hoplite.init(report["address"], agent=report["agent"])
        try:
            ref = hoplite.put(value)
        finally:
            hoplite.shutdown()
        hoplite.init(report["address"], agent=other["agent"])
        try:
            assert np.array_equal(hoplite.get(ref, timeout=HANG), value)
        finally:
            hoplite.shutdown()
        done = command("status", "--json", "--address", report["address"], **variables(files))
        assert len(json.loads(done.stdout)["cluster"]["nodes"]) == 2
        plain = command("status", "--json", "--address", report["address"])
        assert plain.returncode == 1
        assert "the peer uses TLS, and this process does not" in plain.stderr
        plain = command("start", "--address", report["address"], "--memory", "64MiB")
        assert plain.returncode == 1
        assert "the peer uses TLS, and this process does not" in plain.stderr


def test_a_start_with_bad_certificates_says_so(files: TlsFiles, tmp_path: Path) -> None:
    wrong = variables(replace(files, key=tmp_path / "none"))
    done = command("start", "--head", "--port", "0", "--memory", "64MiB", **wrong)
    assert done.returncode == 1
    assert "tls.key: cannot be read" in done.stderr
