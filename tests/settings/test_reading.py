"""Values from a file, variables and arguments: which of them wins, and how each is refused, with its place."""

import contextlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ucx.protocol import lookups
from hoplite_ucx.protocol.settings import Settings
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.settings import (
    SCHEMA,
    HostSettings,
    LogSettings,
    MetricsSettings,
    StoreSettings,
    cluster_settings,
    default_of,
    load,
    of_directory,
)
from hoplite_ucx.runtime.shell import early_links
from hoplite_ucx.settings.errors import ConfigurationError, UnfitError
from hoplite_ucx.settings.kinds import Bandwidth, Count, Duration, Setting, Size
from hoplite_ucx.settings.reading import Argument, Origin, argument, read, variable_of
from hoplite_ucx.transports import interface


def loaded(folder: Path, text: str = "", variables: Mapping[str, str] | None = None, *changes: str) -> HostSettings:
    path = folder / "hoplite.toml"
    path.write_text(text)
    return load(path, variables or {}, [argument(change) for change in changes])


def refusal(folder: Path, text: str = "", variables: Mapping[str, str] | None = None, *changes: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        loaded(folder, text, variables, *changes)
    return str(refused.value).replace(str(folder), "")


def test_nothing_is_all_defaults() -> None:
    assert load(None, {}) == HostSettings()
    assert {row.place.origin for row in load(None, {}).rows()} == {Origin.DEFAULT}


def test_the_later_source_wins_and_each_value_knows_its_place(tmp_path: Path) -> None:
    text = '[cluster]\nheartbeat = "100ms"\nlease = 3\nsuspicion = 0.5\n\n[store]\nmemory = "1GiB"\n'
    variables = {"HOPLITE_CLUSTER_LEASE": "4s", "HOPLITE_CLUSTER_SUSPICION": "0.6"}
    settings = loaded(tmp_path, text, variables, "cluster.suspicion=700ms")
    assert settings.cluster == Settings(heartbeat=0.1, lease=4.0, suspicion=0.7)
    assert settings.store.memory == 1 << 30
    places = {row.name: row.place.text for row in settings.rows() if row.place.origin is not Origin.DEFAULT}
    assert places == {
        "cluster.heartbeat": f"{tmp_path}/hoplite.toml:2",
        "cluster.lease": "HOPLITE_CLUSTER_LEASE",
        "cluster.suspicion": "--set cluster.suspicion",
        "store.memory": f"{tmp_path}/hoplite.toml:7",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n[cluster]\nleese = 1", "/hoplite.toml:3: cluster.leese: is unknown; did you mean lease?"),
        ("[clutser]\n", "/hoplite.toml:1: clutser: is unknown; did you mean cluster?"),
        ("[links]\nlease = 1", "/hoplite.toml:2: links.lease: is unknown; it belongs in [cluster]"),
        ("[cluster]\nlease = 'soon'", "/hoplite.toml:2: cluster.lease: 'soon' is not a duration; write seconds"),
        ("[cluster]\nlease = true", "/hoplite.toml:2: cluster.lease: True is not a number"),
        ("[cluster]\nlease = nan", "/hoplite.toml:2: cluster.lease: nan is not from"),
        ("[cluster]\nlease = inf", "/hoplite.toml:2: cluster.lease: inf is more than 3600s"),
        ("[cluster]\nlease = 0", "/hoplite.toml:2: cluster.lease: 0 is less than 50ms"),
        ("[cluster]\nmax_refs = 1.5", "/hoplite.toml:2: cluster.max_refs: 1.5 is not a whole number"),
        ("[cluster]\ninline_limit = 0.5", "/hoplite.toml:2: cluster.inline_limit: 0.5 is not a whole number of bytes"),
        ("[cluster]\ninline_limit = '1 parsec'", "cluster.inline_limit: '1 parsec' has the unknown unit 'parsec'"),
        ("[cluster]\nput_rate = 3", "cluster.put_rate: 3 has no unit; write"),
        (
            "[cluster]\nheartbeat = 0.5",
            "/hoplite.toml:2: cluster.heartbeat: 2 × heartbeat (500ms) is more than suspicion",
        ),
        ("[cluster]\nlease = 0.5", "/hoplite.toml:2: cluster.lease: suspicion (750ms) is more than lease (500ms)"),
        ("[tls]\nkey = 'a'", "/hoplite.toml:2: tls.certificate: is missing"),
        ("[cluster]\nlease = 1\nlease = 2", "/hoplite.toml:3: the file: is not valid TOML"),
        ("x = " + "[" * 5000, "the file: is"),
    ],
)
def test_an_error_names_the_line_and_the_key(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("variables", "changes", "said"),
    [
        ({"HOPLITE_CLUSTER_LEES": "1"}, (), "the environment: HOPLITE_CLUSTER_LEES: is unknown; did you mean lease?"),
        ({"HOPLITE_CLUSTR_LEASE": "1"}, (), "HOPLITE_CLUSTR_LEASE: is unknown; did you mean HOPLITE_CLUSTER_LEASE?"),
        ({"HOPLITE_TOKENFILE": "x"}, (), "HOPLITE_TOKENFILE: is unknown; did you mean HOPLITE_TOKEN_FILE?"),
        ({"HOPLITE_CLUSTER_LEASE": ""}, (), "the environment: HOPLITE_CLUSTER_LEASE: '' is not a duration"),
        ({"HOPLITE_LINKS_RULES": "x"}, (), "HOPLITE_LINKS_RULES: cannot be set by a variable"),
        ({}, ("lease=1",), "the arguments: --set lease=1: is not a setting and its value"),
        ({}, ("clust.lease=1",), "the arguments: --set clust.lease: is unknown; did you mean cluster?"),
        ({}, ("cluster.lease=1m",), "the arguments: --set cluster.lease: '1m' has the unknown unit 'm'"),
        ({}, ("cluster.lease=3", "cluster.lease=4"), "--set cluster.lease is '3', which is the same setting"),
        ({"HOPLITE_CLUSTER_LEASE": "0.1"}, (), "HOPLITE_CLUSTER_LEASE: suspicion (750ms) is more than lease (100ms)"),
    ],
)
def test_an_error_names_the_variable_or_the_argument(
    tmp_path: Path, variables: dict[str, str], changes: tuple[str, ...], said: str
) -> None:
    assert said in refusal(tmp_path, "", variables, *changes)


def test_an_argument_and_its_flag_may_not_disagree() -> None:
    flags = [argument("store.memory=1GiB"), Argument("--memory", "store", "memory", "2GiB")]
    with pytest.raises(ConfigurationError, match=r"--memory: is '2GiB', and --set store.memory is '1GiB'"):
        load(None, {}, flags)
    assert load(None, {}, [flags[0], Argument("--memory", "store", "memory", "1024MiB")]).store.memory == 1 << 30


def test_ranges_are_within_what_links_and_messages_can_carry() -> None:
    most = {key: setting.most for key, setting in SCHEMA["cluster"].items() if isinstance(setting, Size | Count)}
    assert most["max_granule"] == most["min_granule"] == interface.MAX_GRANULE
    assert most["inline_limit"] <= StoreSettings().small < lookups.MAX_ANSWER
    assert most["introductions"] == early_links.MOST
    small = SCHEMA["store"]["small"]
    assert isinstance(small, Size)
    assert small.most < wire.MAX_FRAME


def test_a_directory_is_started_again_with_what_it_had(tmp_path: Path) -> None:
    text = "[cluster]\nlease = 3\n[tls]\ncertificate = 'a'\nkey = 'b'\nca = 'c'\n"
    settings = loaded(tmp_path, text)
    task = json.loads(json.dumps(settings.for_directory()))
    assert of_directory(task) == (settings.cluster, settings.links.certificates, MetricsSettings(), LogSettings())
    assert of_directory(HostSettings().for_directory()) == (Settings(), None, MetricsSettings(), LogSettings())


def test_a_directory_serves_metrics_at_the_port_after_the_agents(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "[metrics]\nport = 9180\nhost = '::1'\n")
    assert settings.metrics == MetricsSettings(9180, "::1")
    assert of_directory(settings.for_directory()).metrics == MetricsSettings(9181, "::1")
    assert of_directory(loaded(tmp_path, "[metrics]\nport = 0\n").for_directory()).metrics.port == 0


def test_other_variables_are_nobodys_business() -> None:
    variables = {"HOPLITE_BENCH_CLUSTER": "1", "HOPLITE_TOKEN": "x", "HOPLITE_ELSE": "y", "PATH": "/"}
    assert load(None, variables) == HostSettings()


def test_a_node_that_repeats_the_clusters_settings_is_welcome(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "[cluster]\nlease = 3\n")
    settings.check_against(Settings(lease=3.0, heartbeat=0.1), "head:7777")
    with pytest.raises(ConfigurationError) as refused:
        settings.check_against(Settings(lease=2.0), "head:7777")
    assert str(refused.value).startswith(
        f"{tmp_path}/hoplite.toml:2: cluster.lease: is 3s here and 2s in the cluster at head:7777; leave it out here"
    )


def test_a_directory_of_another_version_is_told() -> None:
    for report in ({}, {"settings": {"heartbeat": "often"}}):
        with pytest.raises(ConfigurationError, match=r"the cluster at head:7777.*run the same version"):
            cluster_settings(report, "head:7777")


def test_timers_are_scaled_together_and_nothing_else_is() -> None:
    whole, half = HostSettings(), HostSettings().scaled(0.5)
    for before, after in zip(whole.cluster.__struct_fields__, half.cluster.__struct_fields__, strict=True):
        ratio = 0.5 if before in TIMERS else 1.0
        assert getattr(half.cluster, after) == getattr(whole.cluster, before) * ratio
    for timer in ("cooldown", "connect", "unclaimed", "idle"):
        assert getattr(half.links, timer) == getattr(whole.links, timer) / 2
    assert half.store == whole.store


TIMERS = {
    "heartbeat", "suspicion", "lease", "cooldown", "regroup", "park", "tombstone", "reconnect", "probe", "probe_again",
    "first_cooldown", "declined",
}  # fmt: skip
NUMBERS = Duration | Size | Count | Bandwidth
ALL = [(section, key, setting) for section, keys in SCHEMA.items() for key, setting in keys.items()]


@pytest.mark.parametrize(("section", "key", "setting"), ALL, ids=lambda part: part if isinstance(part, str) else "")
def test_every_setting_is_documented_and_its_default_is_within_its_range(
    section: str, key: str, setting: Setting[Any]
) -> None:
    assert len(setting.doc) > 20
    assert setting.doc.endswith(".")
    assert setting.range
    default = default_of(section, key)
    if default not in (None, ()) and setting.textual:
        assert setting.read_text(setting.show(default)) == default


@given(st.data())
def test_what_is_shown_is_read_back(data: st.DataObject) -> None:
    section, key, setting = data.draw(st.sampled_from([entry for entry in ALL if isinstance(entry[2], NUMBERS)]))
    assert isinstance(setting, NUMBERS)
    value: float
    if isinstance(setting, Size | Count):
        value = data.draw(st.integers(setting.least, setting.most))
    else:
        value = data.draw(st.floats(max(setting.least, 1e-12), setting.most))  # smaller ones are too long to write
    text = setting.show(value)  # type: ignore[arg-type]
    schema = {section: {key: setting}}
    by_variable = read(schema, None, {variable_of(section, key): text}).section(section)[key]
    by_argument = read(schema, None, {}, [argument(f"{section}.{key}={text}")]).section(section)[key]
    assert by_variable == by_argument == setting.read(text) == value


@given(st.permutations([1.0, 2.0, 3.0]), st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_an_argument_counts_more_than_a_variable_and_that_more_than_the_file(
    leases: list[float], given: tuple[bool, bool, bool]
) -> None:
    by_file, by_variable, by_argument = (lease if one else None for lease, one in zip(leases, given, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        settings = loaded(
            Path(folder),
            "" if by_file is None else f"cluster.lease = {by_file}",
            {} if by_variable is None else {"HOPLITE_CLUSTER_LEASE": f"{by_variable}s"},
            *([] if by_argument is None else [f"cluster.lease={by_argument}"]),
        )
    wanted = next((lease for lease in (by_argument, by_variable, by_file) if lease is not None), Settings().lease)
    assert settings.cluster == Settings(lease=wanted)


JUNK = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.lists(st.text(), max_size=2)


@given(st.sampled_from(ALL), JUNK)
def test_junk_is_refused_or_within_the_range(entry: tuple[str, str, Setting[Any]], junk: Any) -> None:
    _, _, setting = entry
    with contextlib.suppress(UnfitError):
        value = setting.read(junk)
        if isinstance(setting, NUMBERS):
            assert setting.least <= value <= setting.most


@given(st.dictionaries(st.sampled_from([variable_of(*entry[:2]) for entry in ALL]), st.text(max_size=12), max_size=3))
def test_a_refusal_names_a_variable_that_was_given(variables: dict[str, str]) -> None:
    refusal = ""
    try:
        load(None, variables)
    except ConfigurationError as error:
        refusal = str(error)
    assert not refusal or any(name in refusal for name in variables)
