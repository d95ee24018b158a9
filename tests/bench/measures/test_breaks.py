"""Senders that die, stop or are cut off in mid-object, and links that break alone: every byte comes, and soon."""

import json
from importlib.util import find_spec

import pytest
from typer.testing import CliRunner

from hoplite_ucx.bench.measures.breaks import WAYS, Break, measure_breaks, measure_mixed_reduce
from hoplite_ucx.cli import app

pytestmark = [
    pytest.mark.usefixtures("emulated_hosts"),
    pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'"),
]

RATE = 125e6
SLOWLY = 10e6
"""Then an object is under way for seconds, in the middle of which something can be broken, also on a busy machine."""
# Measured on a machine without other work: some 0.08 s, 0.9 s, 0.9 s and 0.1 s (docs/transports.md). A busy one may
# take longer; what nobody notices would take for ever.
LIMITS = {Break.KILL: 2.0, Break.STOP: 5.0, Break.CUT: 5.0, Break.LINK: 2.0}


@pytest.mark.parametrize(("transport", "what"), [("tcp", Break.KILL), ("ucx-tcp", Break.LINK)])
def test_the_rest_of_an_object_comes(transport: str, what: Break) -> None:
    outcome = measure_breaks(transport, what, size=16 << 20, rate=SLOWLY)
    if what is Break.LINK:
        assert outcome.goes_on_over.endswith("tcp"), "UCX is not tried again on a link that it just failed on"


@pytest.mark.long(reason="judges speed")
@pytest.mark.parametrize(("transport", "what"), [(name, what) for name, way in WAYS.items() for what in way.breaks])
def test_the_rest_of_an_object_comes_soon_whatever_breaks(transport: str, what: Break) -> None:
    size = (256 if WAYS[transport].one_host else 24) << 20
    outcome = measure_breaks(transport, what, size=size, rate=RATE)
    assert outcome.next_byte is not None
    assert outcome.next_byte < LIMITS[what]
    if what is Break.LINK:
        assert outcome.goes_on_over.endswith("tcp"), "UCX is not tried again on a link that it just failed on"


@pytest.mark.long(reason="judges speed")
def test_a_reduction_over_mixed_transport_survives_the_loss_of_one() -> None:
    outcome = measure_mixed_reduce(size=24 << 20, rate=RATE)
    assert "tcp" in outcome.goes_on_over  # before it, an object did travel over UCX: else there was nothing to break
    assert outcome.cost < 3.0


def test_the_command() -> None:
    ran = CliRunner().invoke(
        app,
        ["bench", "breaks", "--transport", "tcp", "--break", "kill", "--size", "8MiB", "--rate", "80mbit", "--json"],
    )
    assert ran.exit_code == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert (told["transport"], told["what"]) == ("tcp", "kill")
    assert told["cost"] == pytest.approx(told["seconds"] - told["undisturbed"])
