"""Sizes, bandwidths and durations as people write them: `64MiB`, `1gbit`, `100us`.

This module owns both directions. `parse_*` turns text into bytes, bytes per second or seconds and refuses with a
`ValueError` whatever could be read in two ways: units are spelled exactly (`MB` is 10^6 bytes, `MiB` is 2^20,
`mbit` is 10^6 bits), and a bandwidth needs a unit. `format_*` gives text that parses back to the
very same value, so a printed command replays exactly what ran; with `digits` it rounds for people to read.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(.*)", re.ASCII | re.DOTALL)
_LONGEST_TEXT = 64
_LARGEST = 2**63 - 1
_FINEST = 10**6  # sizes are written with at most six decimals

_DECIMAL = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

_BYTES: dict[str, Fraction] = {
    "B": Fraction(1),
    **{f"{prefix}B": Fraction(factor) for prefix, factor in (_BINARY | _DECIMAL).items()},
}
_BYTES_AS_WRITTEN = {**_BYTES, "": Fraction(1)}
_BITS: dict[str, Fraction] = {
    "bit": Fraction(1, 8),
    **{f"{prefix.lower()}bit": Fraction(factor, 8) for prefix, factor in _DECIMAL.items()},
}
_RATES: dict[str, Fraction] = {
    **_BITS,
    **{f"{unit}/s": factor for unit, factor in _BITS.items()},
    **{f"{prefix}bit{per}": Fraction(factor, 8) for prefix, factor in _DECIMAL.items() for per in ("", "/s")},
    **{f"{unit}/s": factor for unit, factor in _BYTES.items()},
}
_SECONDS: dict[str, Fraction] = {
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "ns": Fraction(1, 10**9),
}
_SECONDS_AS_WRITTEN: dict[str, Fraction] = {
    **_SECONDS,
    "": Fraction(1),
    # Unicode has two signs that look the same here: the micro sign and the Greek letter.
    "\N{MICRO SIGN}s": _SECONDS["us"],
    "\N{GREEK SMALL LETTER MU}s": _SECONDS["us"],
}

_SIZES = "64MiB, 1.5GB, 32KiB or 4096 (bytes)"
_BANDWIDTHS = "1gbit, 100mbit (bits per second) or 1.2GB/s"
_DURATIONS = "100us, 1.5ms, 2s or 0.25 (seconds)"


def parse_size(text: str) -> int:
    """Bytes of `64MiB`, `1.5GB`, `4096`; a size is a whole number of bytes."""
    value = _parse(text, "size", _BYTES_AS_WRITTEN, _SIZES)
    if value.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of bytes, as {format_size(round(value))} is; write {_SIZES}")
    return int(value)


def parse_bandwidth(text: str) -> float:
    """Bytes per second of `1gbit`, `100mbit`, `1.2GB/s`; never zero."""
    value = _parse(text, "bandwidth", _RATES, _BANDWIDTHS)
    if value == 0:
        raise ValueError(f"{text!r} is not a bandwidth: it must be more than zero, like {_BANDWIDTHS}")
    return float(value)


def parse_duration(text: str) -> float:
    """Seconds of `100us`, `1.5ms`, `2s`, `0.25`."""
    return float(_parse(text, "duration", _SECONDS_AS_WRITTEN, _DURATIONS))


def format_size(size: int) -> str:
    """The shortest exact spelling: `64MiB`, `1.5GB`, `12345B`."""
    exact = [
        f"{_plain(size / factor)}{unit}"
        for unit, factor in _BYTES.items()
        if unit == "B" or (size >= factor and (size / factor * _FINEST).denominator == 1)
    ]
    return min(exact, key=len)


def format_bandwidth(rate: float, digits: int | None = None) -> str:
    """`1gbit`, `9.6gbit`; exact, or rounded to so many significant digits."""
    return _format(rate, _BITS, digits)


def format_duration(seconds: float, digits: int | None = None) -> str:
    """`100us`, `1.5ms`, `2s`; exact, or rounded to so many significant digits."""
    return _format(seconds, _SECONDS, digits)


def counted(count: int, noun: str) -> str:
    """`1 object`, `1,200 objects`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _parse(text: str, what: str, units: Mapping[str, Fraction], examples: str) -> Fraction:
    shown = repr(text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…")
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= _LONGEST_TEXT else None
    if match is None:
        raise ValueError(f"{shown} is not a {what}; write it like {examples}")
    number, unit = match.groups()
    if unit not in units:
        problem = f"has the unknown unit {unit!r}{_suggestion(unit, units)}" if unit else "has no unit"
        raise ValueError(f"{shown} {problem}; write a {what} like {examples}")
    value = Fraction(number) * units[unit]
    if value > _LARGEST:
        raise ValueError(f"{shown} is too large for a {what}; write it like {examples}")
    return value


def _suggestion(unit: str, units: Mapping[str, Fraction]) -> str:
    alike: dict[Fraction, str] = {}
    for known, factor in units.items():
        if known and _bare(known) == _bare(unit):
            alike.setdefault(factor, known)
    return f" (did you mean {' or '.join(alike.values())}?)" if alike else ""


def _bare(unit: str) -> str:
    """What two spellings that are easily mixed up have in common: `gbps`, `Gbit/s` and `GiB/s` are all `g`."""
    bare = unit.lower().removesuffix("/s").removesuffix("ps")
    return bare.removesuffix("bit").removesuffix("b").removesuffix("i")


def _format(value: float, units: Mapping[str, Fraction], digits: int | None) -> str:
    # repr() is the shortest decimal that is this very float, and every unit is a power of ten or an eighth of one,
    # so scaling that decimal loses nothing and parsing it back yields the same float.
    exact = Fraction(repr(float(value)))
    if not exact:
        return f"0{next(iter(units))}"
    fitting = [item for item in units.items() if exact >= item[1]]
    unit, factor = max(fitting, key=_factor) if fitting else min(units.items(), key=_factor)
    scaled = exact / factor
    if digits is not None:
        scaled = Fraction(f"{float(scaled):.{digits - 1}e}")
    return f"{_plain(scaled)}{unit}"


def _factor(item: tuple[str, Fraction]) -> Fraction:
    return item[1]


def _plain(value: Fraction) -> str:
    """A fraction that has a short decimal expansion, written out without an exponent."""
    text = f"{Decimal(value.numerator) / Decimal(value.denominator):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
