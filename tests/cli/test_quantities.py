"""Quantities: what is accepted, what is refused and how, and that formatting and parsing undo each other."""

import math
from decimal import Decimal
from typing import Annotated

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hoplite_ucx.cli.quantities import (
    bandwidth_option,
    counted,
    duration_option,
    format_bandwidth,
    format_duration,
    format_size,
    parse_bandwidth,
    parse_duration,
    parse_size,
    size_option,
)

PARSERS = [parse_size, parse_bandwidth, parse_duration]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("17B", 17),
        ("32KiB", 32 * 2**10),
        ("64MiB", 64 * 2**20),
        ("64 MiB", 64 * 2**20),
        (" 64MiB ", 64 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("2TiB", 2**41),
        ("32kB", 32_000),
        ("64MB", 64_000_000),
        ("1.5GB", 1_500_000_000),
        (".5kB", 500),
        ("1TB", 10**12),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1gbit", 125e6),
        ("1Gbit", 125e6),
        ("1Gbit/s", 125e6),
        ("1gbit/s", 125e6),
        ("100mbit", 12.5e6),
        ("2.5gbit", 312.5e6),
        ("800kbit", 100e3),
        ("8bit", 1.0),
        ("1.2GB/s", 1.2e9),
        ("1GiB/s", 2.0**30),
        ("300 MB/s", 300e6),
        ("5B/s", 5.0),
    ],
)
def test_bandwidths(text: str, rate: float) -> None:
    assert parse_bandwidth(text) == rate


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("100us", 100e-6),
        ("100\N{MICRO SIGN}s", 100e-6),
        ("100\N{GREEK SMALL LETTER MU}s", 100e-6),
        ("1.5ms", 1.5e-3),
        ("20ns", 20e-9),
        ("2s", 2.0),
        ("2 s", 2.0),
        ("0.25", 0.25),
        ("0", 0.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0B"),
        (999, "999B"),
        (1000, "1kB"),
        (1024, "1KiB"),
        (3 * 2**19, "1.5MiB"),
        (12345, "12345B"),
        (64 * 2**20, "64MiB"),
        (10**9, "1GB"),
        (1_500_000_000, "1.5GB"),
        (2**63 - 1, "9223372036854775807B"),
    ],
)
def test_a_size_is_written_in_its_shortest_exact_form(size: int, text: str) -> None:
    assert format_size(size) == text


def test_rates_and_durations_are_written_in_the_largest_unit_that_fits() -> None:
    assert format_bandwidth(125e6) == "1gbit"
    assert format_bandwidth(1.2e9) == "9.6gbit"
    assert format_bandwidth(0.01) == "0.08bit"
    assert format_duration(100e-6) == "100us"
    assert format_duration(90.0) == "90s"
    assert format_duration(2e-10) == "0.2ns"
    assert format_duration(0.0) == "0s"


def test_digits_round_for_the_eye() -> None:
    assert format_duration(0.53687091, digits=4) == "536.9ms"
    assert format_duration(123456.0, digits=2) == "120000s"
    assert format_bandwidth(123_456_789.0, digits=3) == "988mbit"
    assert format_duration(0.0, digits=3) == "0s"


@settings(deadline=None)
@given(st.integers(0, 2**63 - 1) | st.integers(0, 4096).map(lambda n: n * 2**20) | st.integers(0, 9999))
def test_every_size_survives_a_round_trip(size: int) -> None:
    assert parse_size(format_size(size)) == size


@settings(deadline=None)
@given(st.floats(1e-3, 1e15))
def test_every_bandwidth_survives_a_round_trip(rate: float) -> None:
    assert parse_bandwidth(format_bandwidth(rate)) == rate


@settings(deadline=None)
@given(st.just(0.0) | st.floats(1e-12, 1e12))
def test_every_duration_survives_a_round_trip(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@settings(deadline=None)
@given(st.floats(1e-9, 1e9), st.integers(1, 12))
def test_rounded_durations_are_close(seconds: float, digits: int) -> None:
    rounded = parse_duration(format_duration(seconds, digits=digits))
    assert math.isclose(rounded, seconds, rel_tol=0.5 * 10.0 ** (1 - digits) * 1.001)


@settings(deadline=None)
@given(st.decimals(0, 10**6, places=3), st.sampled_from(["us", "ms", "s"]))
def test_durations_are_the_nearest_float(number: Decimal, unit: str) -> None:
    exponent = {"us": -6, "ms": -3, "s": 0}[unit]
    assert parse_duration(f"{number:f}{unit}") == float(number.scaleb(exponent))


@settings(deadline=None)
@given(st.text())
def test_any_text_is_a_quantity_or_a_value_error(text: str) -> None:
    for parse in PARSERS:
        try:
            value = parse(text)
        except ValueError:
            continue
        assert 0 <= value < 2**63


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "text",
    ["", "MiB", "-1", "+1", "1e9", "nan", "inf", "1_000", "1,5", "0x10", "1..5", "5.", "٣", "1 2", "64MiBx", "1\n2",
     "9" * 40],
)  # fmt: skip
def test_what_is_no_quantity_is_refused_with_the_input_and_examples(parse, text: str) -> None:
    with pytest.raises(ValueError, match="write") as refusal:
        parse(text)
    assert repr(text) in str(refusal.value)
    assert any(example in str(refusal.value) for example in ("64MiB", "1gbit", "100us"))


@pytest.mark.parametrize("parse", PARSERS)
def test_a_very_long_text_is_refused_without_repeating_all_of_it(parse) -> None:
    with pytest.raises(ValueError, match="…") as refusal:
        parse("1" * 100_000)
    assert len(str(refusal.value)) < 250


@pytest.mark.parametrize(
    ("parse", "text", "hint"),
    [
        (parse_size, "64mb", "did you mean MiB or MB?"),
        (parse_size, "64M", "did you mean MiB or MB?"),
        (parse_size, "32k", "did you mean KiB or kB?"),
        (parse_size, "32KB", "did you mean KiB or kB?"),
        (parse_size, "1.5B", "not a whole number of bytes, as 2B is"),
        (parse_size, "0.1MiB", "not a whole number of bytes, as 104858B is"),
        (parse_bandwidth, "1gbps", "did you mean gbit or GiB/s or GB/s?"),
        (parse_bandwidth, "1GB", "did you mean gbit or GiB/s or GB/s?"),
        (parse_bandwidth, "1000", "has no unit"),
        (parse_bandwidth, "0gbit", "more than zero"),
        (parse_duration, "5MS", "did you mean ms?"),
    ],
)
def test_near_misses_are_told_apart(parse, text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=r"write|like") as refusal:
        parse(text)
    assert hint in str(refusal.value)


def _command() -> typer.Typer:
    app = typer.Typer()

    @app.command()
    def show(
        size: Annotated[int, typer.Option(parser=size_option)] = "64MiB",  # type: ignore[assignment]
        bandwidth: Annotated[float, typer.Option(parser=bandwidth_option)] = "1gbit",  # type: ignore[assignment]
        latency: Annotated[float, typer.Option(parser=duration_option)] = "100us",  # type: ignore[assignment]
    ) -> None:
        typer.echo(f"{size} {bandwidth} {latency}")

    return app


def test_typer_options_take_quantities_and_text_defaults() -> None:
    assert CliRunner().invoke(_command(), []).stdout == "67108864 125000000.0 0.0001\n"
    given_all = CliRunner().invoke(_command(), ["--size", "1KiB", "--bandwidth", "8bit", "--latency", "2ms"])
    assert given_all.stdout == "1024 1.0 0.002\n"


def test_typer_shows_the_whole_refusal_as_a_usage_error() -> None:
    result = CliRunner().invoke(_command(), ["--size", "64mb"], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert "'64mb' has the unknown unit 'mb' (did you mean MiB or MB?)" in result.output
    assert "--size" in result.output


@pytest.mark.parametrize(("count", "text"), [(0, "0 refs"), (1, "1 ref"), (2, "2 refs"), (1200, "1,200 refs")])
def test_counts(count: int, text: str) -> None:
    assert counted(count, "ref") == text
