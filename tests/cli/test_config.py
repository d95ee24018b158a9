"""`hoplite config`: what is in force, where it is from, what it does; and docs/settings.md, which it writes."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hoplite_ucx.cli import app
from hoplite_ucx.cli.config import reference_page
from hoplite_ucx.runtime.settings import SCHEMA

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def run(*arguments: str, code: int = 0, **variables: str) -> str:
    done = CliRunner().invoke(app, ["config", *arguments], env={"HOPLITE_CONFIG": None, "COLUMNS": "200", **variables})
    assert done.exit_code == code, done.output
    return done.output


def rows(*arguments: str, **variables: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(run("--json", *arguments, **variables))["settings"]}


def test_it_works_without_a_cluster_and_a_file() -> None:
    shown = rows()
    assert list(shown) == [f"{section}.{key}" for section, keys in SCHEMA.items() for key in keys]
    assert {row["origin"] for row in shown.values()} == {"default"}
    assert all(row["value"] == row["default"] for row in shown.values())
    table = run()
    assert "HOPLITE_CONFIG is not set" in table
    assert all(name in table for name in shown)


def test_each_value_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "hoplite.toml"
    path.write_text('[cluster]\nlease = "3s"\nsuspicion = 1\n\n[[links.rules]]\nhost = "*"\ntransport = "tcp"\n')
    given = {"HOPLITE_CONFIG": str(path), "HOPLITE_CLUSTER_SUSPICION": "1.5"}
    shown = rows("--set", "store.memory=1GiB", **given)
    places = {name: (row["value"], row["place"]) for name, row in shown.items() if row["origin"] != "default"}
    assert places == {
        "cluster.lease": (3.0, f"{path}:2"),
        "cluster.suspicion": (1.5, "HOPLITE_CLUSTER_SUSPICION"),
        "store.memory": (1 << 30, "--set store.memory"),
        "links.rules": ([{"host": "*", "transport": "tcp"}], f"{path}:5"),
    }
    assert f"{path}:2" in run(**given)
    assert rows("--config", str(path))["cluster.lease"]["value"] == 3.0


def test_a_wrong_setting_is_told(tmp_path: Path) -> None:
    path = tmp_path / "hoplite.toml"
    path.write_text("[cluster]\nleese = 1\n")
    assert f"{path}:2: cluster.leese: is unknown; did you mean lease?" in run("--config", str(path), code=1)


@pytest.mark.parametrize("name", ["cluster.lease", "lease", "HOPLITE_CLUSTER_LEASE"])
def test_a_setting_is_explained(name: str) -> None:
    said = run("--explain", name, "--set", "cluster.lease=5s")
    assert "cluster.lease = 5s  (--set cluster.lease)" in said
    assert "declared dead" in said
    assert "default   2s" in said


def test_a_name_that_two_settings_have_explains_both() -> None:
    said = run("--explain", "cooldown")
    assert "cluster.cooldown = 1s" in said
    assert "links.cooldown = 30s" in said


def test_a_name_that_nobody_has() -> None:
    assert "did you mean cluster.lease?" in run("--explain", "cluster.leas", code=2)


def test_the_page_is_up_to_date() -> None:
    """`hoplite config --reference > docs/settings.md` makes it."""
    assert run("--reference") == reference_page() == PAGE.read_text()
