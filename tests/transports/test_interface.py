"""Streams that make no sense, whichever transport they are for."""

import pytest

from hoplite_ucx.transports.interface import MAX_GRANULE, Stream, StreamKey

KEY = (1, (1 << 64) - 1)


def test_what_may_be_empty_and_what_is_largest() -> None:
    """None of these is refused."""
    Stream(KEY, 0, 0, 1)
    Stream(KEY, 10, 10, 1)
    Stream(KEY, 0, (1 << 63) - 1, MAX_GRANULE)


@pytest.mark.parametrize("key", [(-1, 1), (1, 1 << 64)])
def test_a_key_is_two_numbers_of_eight_bytes(key: StreamKey) -> None:
    with pytest.raises(ValueError, match="a stream's key must be two numbers"):
        Stream(key, 0, 10, 4096)


@pytest.mark.parametrize(("offset", "size"), [(-1, 10), (11, 10), (0, 1 << 63)])
def test_bytes_that_there_cannot_be(offset: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"offset {offset} is not within the size of {size}"):
        Stream(KEY, offset, size, 4096)


@pytest.mark.parametrize("granule", [0, MAX_GRANULE + 1])
def test_a_granule_has_its_bounds(granule: int) -> None:
    with pytest.raises(ValueError, match=f"a granule must have 1 to {MAX_GRANULE} bytes, not {granule}"):
        Stream(KEY, 0, 10, granule)
