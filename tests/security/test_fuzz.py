"""Bytes that make no sense: parsers raise their own errors only, and ports go on serving."""

import contextlib
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hoplite_ucx.bench.measures.fuzz import fuzz_parsers, fuzz_ports, parsers
from hoplite_ucx.cli import app
from hoplite_ucx.cli.quantities import parse_bandwidth, parse_duration, parse_size
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.runtime.objects import layouts, values
from hoplite_ucx.transports.configuration import ConfigurationError, load

PARSERS = parsers(random.Random(1))


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
@given(data=st.data())
def test_every_parser_raises_its_own_errors_only(parser, data) -> None:  # type: ignore[no-untyped-def]
    """Hypothesis finds what random changes do not: it shrinks, and tries what is near to what was odd."""
    sample = data.draw(st.sampled_from(parser.samples))
    at = data.draw(st.integers(0, len(sample)))
    until = data.draw(st.integers(at, len(sample)))
    with contextlib.suppress(parser.refusals):
        parser.read(sample[:at] + data.draw(st.binary(max_size=40)) + sample[until:])


@given(text=st.text(max_size=80))
def test_configurations(text: str) -> None:
    """Whatever a file or a variable says is read, or refused with the one error that names the place."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hoplite.toml"
        path.write_text(text)
        for environment in ({}, {"HOPLITE_LINKS_COOLDOWN": text}, {"HOPLITE_UCX_SEGMENT": text}):
            with contextlib.suppress(ConfigurationError):
                load(path, environment)


@given(text=st.text(max_size=70) | st.from_regex(r"[0-9.]{1,30} ?[A-Za-z/]{0,6}"))
def test_quantities(text: str) -> None:
    for parse in (parse_size, parse_bandwidth, parse_duration):
        with contextlib.suppress(ValueError):
            assert parse(text) >= 0


def test_many_frames() -> None:
    report = fuzz_parsers(20_000, seed=7)
    assert report.crashes == []
    assert report.frames == 20_000
    assert 0 < report.refused < 20_000
    assert report.growth < 32 << 20


def test_every_port_goes_on_serving() -> None:
    report = fuzz_ports(900, seed=7)
    assert report.serves_after
    assert len(report.by_parser) == 7
    assert report.growth < 32 << 20


def test_the_command() -> None:
    done = CliRunner().invoke(app, ["bench", "fuzz", "--frames", "2000", "--port-frames", "0"])
    assert done.exit_code == 0, done.output
    assert "2000 frames" in done.output
    assert "crashes: 0" in done.output


@pytest.mark.parametrize(
    "leaf",
    [
        ("|S0", [1 << 40]),  # no bytes, and yet an array that takes a TiB
        ("<f8", [0, 1 << 61]),
        ("O", [1]),
        (["a", "<f8"], [1]),
    ],
)
def test_layouts_that_no_array_can_have(leaf: tuple[object, list[int]]) -> None:
    dtype, shape = leaf
    data = layouts.encode_layout(layouts.ArrayLayout(layouts.Leaf(dtype, tuple(shape))))
    with pytest.raises(HopliteError):
        values.decode(memoryview(bytes(64)), data)


def test_nothing_is_unpickled_but_by_decoding_a_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading its layouts, as agents and reductions do, does not."""
    encoded = values.encode({"an": "object"})
    calls = []
    monkeypatch.setattr(values.pickle, "loads", lambda *_, **__: calls.append(1))
    found = layouts.decode_layout(encoded.layout, encoded.size)
    assert isinstance(found, layouts.BundleLayout)
    assert layouts.leaves_of(found) == ()
    assert calls == []
    values.decode(memoryview(encoded.to_bytes()), encoded.layout)
    assert calls == [1]
