"""What each command of `hoplite` takes, as Markdown, from the commands themselves: for the page of the manual."""

from collections.abc import Iterator
from typing import Any

import typer

from hoplite_ucx.cli import app

_COMPLETION = {"install_completion", "show_completion"}


def commands() -> str:
    root: Any = typer.main.get_command(app)
    return "\n".join(_described("hoplite", root, root.make_context("hoplite", [], resilient_parsing=True), level=1))


def _described(name: str, command: Any, context: Any, level: int) -> Iterator[str]:
    if level > 1:
        yield f"{'#' * min(level, 4)} {name}\n"
        yield f"{_text(command.help or '')}\n"
    options = [each for each in command.params if each.name not in _COMPLETION and not getattr(each, "hidden", False)]
    if options:
        yield "| option | |\n|---|---|"
        for option in options:
            names = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
            yield f"| {names} | {_cell(option)} |"
        yield ""
    for each in command.list_commands(context) if hasattr(command, "list_commands") else ():
        _, found, _ = command.resolve_command(context, [each])
        within = found.make_context(each, [], parent=context, resilient_parsing=True)
        yield from _described(f"{name} {each}", found, within, level + 1)


def _cell(option: Any) -> str:
    text = _text(getattr(option, "help", None) or "")
    default = option.default
    shown = default not in (None, False, True, (), [], "") and not callable(default)
    return f"{text} Default: `{default}`." if shown else text


def _text(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
