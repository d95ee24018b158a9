"""What the configuration says, and what it refuses: with the place, the key and a remedy."""

from pathlib import Path

import pytest

from hoplite_ucx.transports.configuration import Configuration, ConfigurationError, Kind, load
from hoplite_ucx.transports.ucx.settings import UcxSettings

WHOLE = """
[links]
transport = "tcp"
cooldown = 5

[[links.rules]]
subnet = "198.18.0.0/16"
device = "mlx5_0"
transport = "rdma"
net_devices = ["mlx5_0:1", "mlx5_1:1"]

[[links.rules]]
host = "gpu-*"
transport = "ucx"
tls = ["tcp", "posix"]

[ucx]
segment = "256KiB"
options = { RNDV_THRESH = "64K" }
"""


def read(tmp_path: Path, text: str, **variables: str) -> Configuration:
    path = tmp_path / "hoplite.toml"
    path.write_text(text)
    return load(path, variables)


def test_nothing_is_auto() -> None:
    configuration = load(environment={})
    assert configuration == Configuration()
    assert not configuration.wants_ucx


def test_a_whole_file(tmp_path: Path) -> None:
    configuration = read(tmp_path, WHOLE)
    assert configuration.transport is Kind.TCP
    assert configuration.cooldown == 5
    assert configuration.ucx == UcxSettings(segment=256 << 10, options=(("RNDV_THRESH", "64K"),))
    assert configuration.wants_ucx
    rdma, named = configuration.rules
    assert rdma.ucx is not None
    assert (rdma.ucx.tls, rdma.ucx.net_devices, rdma.ucx.segment) == (("rc",), ("mlx5_0:1", "mlx5_1:1"), 256 << 10)
    assert named.ucx is not None
    assert named.ucx.tls == ("tcp", "posix")
    assert rdma.fits("198.18.3.4", frozenset({"mlx5_0"}))
    assert not rdma.fits("198.18.3.4", frozenset())
    assert not rdma.fits("198.19.3.4", frozenset({"mlx5_0"}))
    assert not rdma.fits("gpu-1", frozenset({"mlx5_0"}))
    assert named.fits("gpu-1", frozenset())


def test_what_ucx_is_given() -> None:
    options = UcxSettings(tls=("rc",), net_devices=("mlx5_0:1", "mlx5_1:1")).for_ucx()
    assert options["TLS"] == "rc,self"
    assert options["NET_DEVICES"] == "mlx5_0:1,mlx5_1:1"
    assert options["MAX_RNDV_RAILS"] == "2"
    assert UcxSettings().for_ucx()["TCP_TX_SEG_SIZE"] == str(1 << 20)


def test_variables_come_over_the_file(tmp_path: Path) -> None:
    configuration = read(
        tmp_path, WHOLE, HOPLITE_LINKS_TRANSPORT="ucx", HOPLITE_LINKS_COOLDOWN="1.5", HOPLITE_UCX_TLS="posix, tcp",
        HOPLITE_UCX_SEGMENT="1MiB", HOPLITE_TOKEN="not ours",
    )  # fmt: skip
    assert configuration.transport is Kind.UCX
    assert configuration.cooldown == 1.5
    assert configuration.ucx.tls == ("posix", "tcp")
    assert configuration.ucx.segment == 1 << 20


def test_the_file_is_named_by_a_variable(tmp_path: Path) -> None:
    path = tmp_path / "there.toml"
    path.write_text('[links]\ntransport = "ucx"\n')
    assert load(environment={"HOPLITE_CONFIG": str(path)}).transport is Kind.UCX


@pytest.mark.parametrize(
    ("text", "key", "remedy"),
    [
        ("[links]\nspeed = 1", "links.speed", "transport, require"),
        ("[link]\n", "link", "links, ucx"),
        ('links = "tcp"', "links", "[links]"),
        ('[links]\ntransport = "infiniband"', "links.transport", "auto, tcp, ucx, rdma"),
        ('[links]\nrequire = "auto"', "links.require", "rdma, ucx, tcp"),
        ('[links]\nrequire = "rdma"\ntransport = "tcp"', "links.require", "leave one"),
        ("[links]\ncooldown = -1", "links.cooldown", "seconds"),
        ("[links]\ncooldown = true", "links.cooldown", "seconds"),
        ("[links]\nrules = 1", "links.rules", "[[links.rules]]"),
        ('[[links.rules]]\nsubnet = "198.18.0.0/16"', "links.rules[1].transport", "auto"),
        ('[[links.rules]]\ntransport = "tcp"\nsubnet = "198.18.0.1/16"', "links.rules[1].subnet", "198.18.0.0/16"),
        ('[[links.rules]]\ntransport = "tcp"\nsubnet = "here"', "links.rules[1].subnet", "198.18.0.0/16"),
        ('[[links.rules]]\ntransport = "tcp"\nhost = 7', "links.rules[1].host", "in quotes"),
        ('[[links.rules]]\ntransport = "tcp"\ntls = ["rc"]', "links.rules[1].tls", "ucx"),
        ('[[links.rules]]\ntransport = "tcp"\nport = 7', "links.rules[1].port", "subnet"),
        ('[links]\nrequire = "rdma"\n[[links.rules]]\ntransport = "tcp"', "links.rules[1].transport", "leave out"),
        ("[ucx]\ntls = []", "ucx.tls", "rc"),
        ('[ucx]\ntls = "rc"', "ucx.tls", "rc"),
        ('[ucx]\nnet_devices = ["a b"]', "ucx.net_devices", "rc"),
        ('[ucx]\nsegment = "1TiB"', "ucx.segment", "8KiB to 16MiB"),
        ("[ucx]\nsegment = 100", "ucx.segment", "8KiB to 16MiB"),
        ('[ucx.options]\nTLS = "rc"', "ucx.options.TLS", "use tls"),
        ("[ucx.options]\nRNDV_THRESH = 1", "ucx.options.RNDV_THRESH", "in quotes"),
        ("[links", "the file", "correct it"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, key: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(tmp_path, text)
    assert refused.value.key == key
    assert remedy in refused.value.remedy
    assert str(tmp_path / "hoplite.toml") in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOPLITE_LINKS_TRANSPORT", "fast"),
        ("HOPLITE_LINKS_COOLDOWN", "soon"),
        ("HOPLITE_LINKS_RULES", "x"),
        ("HOPLITE_LINKS_SPEED", "1"),
        ("HOPLITE_UCX_SEGMENT", "big"),
        ("HOPLITE_UCX_OPTIONS", "x"),
        ("HOPLITE_UCX_TLS", ""),
    ],
)
def test_variables_that_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        load(environment={name: value})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="HOPLITE_CONFIG"):
        load(environment={"HOPLITE_CONFIG": str(tmp_path / "none.toml")})
