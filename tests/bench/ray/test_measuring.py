"""The ratio of small calls, and its interval."""

from hoplite_ucx.bench.ray.measuring import _ratios


def test_the_interval_of_a_ratio() -> None:
    plain = [[1.0, 2.0, 1.0]] * 40
    ours = [[1.1, 9.0, 1.1]] * 40
    calls = _ratios("put", 1024, plain, ours)
    assert (calls.ratio, calls.low, calls.high) == (1.1, 1.1, 1.1)  # a slow call now and then does not count
    assert calls.count == 120
    mixed = [[1.0]] * 20 + [[1.2]] * 20
    calls = _ratios("put", 1024, [[1.0]] * 40, mixed)
    assert calls.low == 1.0
    assert calls.high == 1.2
    assert calls.low <= calls.ratio <= calls.high
