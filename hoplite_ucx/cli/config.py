"""`hoplite config`: the settings that are in force, where each comes from, and what each of them does."""

import difflib
import json
import textwrap
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hoplite_ucx.cli.settings_options import ConfigOption, SetOption, settings_of_flags
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.protocol.settings import Settings
from hoplite_ucx.runtime.host.memory_limits import store_limit
from hoplite_ucx.runtime.launch.inspection import directory_status, token_towards
from hoplite_ucx.runtime.settings import SCHEMA, HostSettings, Row, cluster_settings, default_of, load
from hoplite_ucx.settings.errors import ConfigurationError
from hoplite_ucx.settings.kinds import Count, FileName, Tables
from hoplite_ucx.settings.reading import CONFIG, Origin, variable_of

_SECTIONS = {
    "cluster": "The same for all hosts. They are set where the directory is started, which gives them to every node. A "
    "node may repeat them, and is refused if it has others.",
    "store": "Each host's own: the memory of its objects.",
    "processes": "Each host's own: how its directory and agent start and end, and when programs ask after an agent.",
    "links": "Each host's own: which transport its links use.",
    "ucx": "Links over UCX. Both ends of a link need the same, except for `net_devices`.",
    "tls": "All three, or no TLS. Names in a file are relative to that file.",
    "metrics": "Each host's own: numbers for Prometheus, off by default. [observing.md](observing.md) lists them.",
    "log": "Each host's own: what its agent and its directory write, and where.",
}
_WIDTH = 120


def config(
    config: ConfigOption = None,
    changes: SetOption = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A directory: show the settings of its cluster instead of this host's."),
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="KEY", help="Say what a setting does, such as cluster.lease or lease.")
    ] = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Print a page about all settings, in Markdown: docs/settings.md.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show the settings that are in force here, and where each comes from.

    They come from the TOML file that HOPLITE_CONFIG or --config names, from the variables HOPLITE_<SECTION>_<KEY>, and
    from --set; the later wins. Exits with 1 if one is wrong, or differs from that of the cluster at --address.
    """
    if reference:
        typer.echo(reference_page(), nl=False)
        return
    refused: str | None = None
    cluster: Settings | None = None
    try:
        settings = load(config, arguments=settings_of_flags(changes))
        if address is not None:
            cluster = cluster_settings(directory_status(address, token_towards(address)), address)
    except (ConfigurationError, HopliteError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    rows = list(settings.rows(cluster))
    if explain is not None:
        rows = _named(explain, rows)
    if address is not None and cluster is not None:
        try:
            settings.check_against(cluster, address)
        except ConfigurationError as error:
            refused = str(error)
    if as_json:
        path = settings.values.path
        report = {"file": None if path is None else str(path), "address": address, "error": refused}
        typer.echo(json.dumps({**report, "settings": [_report(row) for row in rows]}))
    elif explain is not None:
        for row in rows:
            typer.echo(_explained(row))
    else:
        _show(Console(), settings, rows)
    if refused is not None:
        if not as_json:
            typer.echo(f"error: this host's agent would be refused: {refused}", err=True)
        raise typer.Exit(1)


def _named(name: str, rows: list[Row]) -> list[Row]:
    """The settings that somebody calls so: with or without their section, or by their variable."""
    found = [row for row in rows if name in (row.name, row.key, variable_of(row.section, row.key))]
    if found:
        return found
    names = [name for row in rows for name in (row.name, row.key)]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else "`hoplite config` shows all settings"
    raise typer.BadParameter(f"there is no setting {name!r}; {hint}", param_hint="--explain")


def _show(console: Console, settings: HostSettings, rows: Iterable[Row]) -> None:
    path = settings.values.path
    console.print(
        f"no file: {CONFIG} is not set" if path is None else f"file: {path}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    table = Table("setting", "value", "from")
    section = ""
    for row in rows:
        if row.section != section:
            if section:
                table.add_section()
            section = row.section
        style = "" if row.place.origin is Origin.DEFAULT else "bold"
        table.add_row(row.name, _value(row), row.place.text, style=style)
    console.print(table)


def _value(row: Row) -> str:
    """A limit of memory that nobody gave is decided by this host's memory."""
    if row.name == "store.memory" and row.value is None:
        return row.setting.show(store_limit(None))
    return row.shown or "-"


def _report(row: Row) -> dict[str, Any]:
    default = default_of(row.section, row.key)
    return {
        "name": row.name,
        "value": row.value,
        "text": row.shown,
        "origin": row.place.origin.value,
        "place": row.place.text,
        "default": default,
        "unit": row.setting.unit,
        "range": row.setting.range,
        "variable": variable_of(row.section, row.key) if row.setting.textual else None,
        "doc": row.setting.doc,
    }


def _explained(row: Row) -> str:
    lines = [f"{row.name} = {_value(row)}  ({row.place.text})", "", *textwrap.wrap(row.setting.doc, 100), ""]
    return "\n".join([*lines, *(f"{what:9} {text}" for what, text in _facts(row))]) + "\n"


def _facts(row: Row) -> list[tuple[str, str]]:
    default = default_of(row.section, row.key)
    facts = [
        ("default", row.setting.show(default) if default not in (None, ()) else "none"),
        ("range", row.setting.range),
        ("in a file", f"[{row.section}] {row.key} = {_example(row)}"),
    ]
    if row.setting.textual:
        facts.append(("variable", variable_of(row.section, row.key)))
    return facts


def _example(row: Row) -> str:
    """How the default, or something like it, is written in TOML."""
    default = default_of(row.section, row.key)
    if isinstance(row.setting, Tables):
        return f"[…], or each as [[{row.name}]]"
    if isinstance(row.setting, FileName):
        return f'"{row.key}.pem"' if row.section == "tls" else '"hoplite.log"'
    if isinstance(row.setting, Count) and default is None:
        return str(row.setting.least)
    if isinstance(default, tuple):
        return json.dumps(list(default) or ["NAME"]) if row.setting.textual else '{ NAME = "value" }'
    if row.setting.unit:
        return f'"{row.setting.show(default)}"' if default is not None else f'"{row.setting.range.split(" ")[0]}"'
    return json.dumps(default if default is not None else row.setting.range.split(", ")[0])


def reference_page() -> str:
    """docs/settings.md."""
    page = [
        "# Settings",
        "",
        "<!-- Made by `hoplite config --reference > docs/settings.md`; a test compares the two. -->",
        "",
        *_paragraph(
            "Every timer, limit and threshold that an operator can change, with its reason. Values come from these "
            "sources; the later wins:"
        ),
        "",
        "1. the default",
        "2. the TOML file that `HOPLITE_CONFIG` names, or `--config` of `hoplite start`, or `config=` of `init`",
        "3. the variable `HOPLITE_<SECTION>_<KEY>`, such as `HOPLITE_CLUSTER_LEASE=5s`",
        "4. an argument: `hoplite start --set cluster.lease=5s`, `--memory`, `--rate`; `init(memory=…)`",
        "",
        *_paragraph(
            "They are read and checked when a process starts. An error names the file and the line (or the variable, "
            "or the argument), the key, what is wrong and what to write. `hoplite config` shows what is in force and "
            "where each value comes from; `hoplite config --explain lease` shows what is below. Durations are numbers "
            'of seconds or texts such as "250ms"; sizes are numbers of bytes or texts such as "64MiB"; lists in a '
            "variable are separated by commas."
        ),
    ]
    rows = list(HostSettings().rows())
    for section in SCHEMA:
        page += ["", f"## [{section}]", "", *_paragraph(_SECTIONS[section])]
        for row in rows:
            if row.section == section:
                default, allowed, written, *variable = (text for _, text in _facts(row))
                named = f"; `{variable[0]}`" if variable else ""
                page += ["", f"### {row.name}", "", f"Default: {default}. Range: {allowed}. `{written}`{named}", ""]
                page += _paragraph(row.setting.doc)
    return "\n".join(page) + "\n"


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
