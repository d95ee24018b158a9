"""Every shell block of the manual runs as it is, or says why not; and every `hoplite` in one has options that exist.

Blocks that begin with `# on the first host` and the like are steps on several hosts: `test_two_hosts` runs them and, in
a fresh checkout, the README's `ci/demo`.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from hoplite_ucx.cli import app
from tests.runtime.test_faults import without_address
from tests.tools.pages import PAGES, ROOT, Block, all_blocks, blocks

SHELL = all_blocks("sh", "bash", "console", "shell")
STEP = "# on the "
ONE_HOST = [block for block in SHELL if block.not_run is None and not block.text.startswith((STEP, "ci/demo "))]
COMMAND = re.compile(
    r"^(\$ )?(sudo |[A-Z_]+=\S+ )*(hoplite|pip|python3?|ci/\w+|\.venv/bin/\S+|ssh|scp|curl|export) ", re.M
)


def test_blocks_of_commands_say_so() -> None:
    """Else they would not be run. The history tells of past runs; tests/test_readme.py runs what try.md simulates."""
    now = [page for page in PAGES if page.exists() and "history" not in page.parts]
    unmarked = [
        block.name
        for page in now
        for block in blocks(page)
        if block.language == "" and page.name != "try.md" and COMMAND.match(block.text)
    ]
    unmarked += [
        f"{page.relative_to(ROOT)}: {found}"
        for page in now
        for found in re.findall(r"^\n    ((?:hoplite|pip|ci/\w+) .*)$", page.read_text(), re.MULTILINE)
    ]
    assert not unmarked


@pytest.mark.parametrize("block", ONE_HOST, ids=[block.name for block in ONE_HOST])
def test_commands_run(block: Block, tmp_path: Path) -> None:
    assert "ci/" not in block.text, "it would set up an environment in the wrong place: mark it, and say why"
    for each in ROOT.iterdir():  # as in the checkout, but what they write is not
        (tmp_path / each.name).symlink_to(each)
    environment = {
        **without_address(),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path / "home"),
    }
    command = ["bash", "-euo", "pipefail", "-c", block.text]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr


def invocations(block: Block) -> Iterator[list[str]]:
    text = block.text.replace("\\\n", " ")
    for line in re.findall(r"(?:^|[;&|(] *|\w+=\S+ )(?:\.venv/bin/)?hoplite +(\S.*)$", text, re.MULTILINE):
        words = shlex.split(line, comments=True)
        yield words[
            : next((place for place, word in enumerate(words) if word in ("|", "||", "&&", ">", "&", ";")), None)
        ]


NAMED = [(block, words) for block in SHELL for words in invocations(block)]


@pytest.mark.parametrize(("block", "words"), NAMED, ids=[f"{block.name} {' '.join(words)}" for block, words in NAMED])
def test_options_exist(block: Block, words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    context = command.make_context("hoplite", [], resilient_parsing=True)
    rest = list(words)
    while hasattr(command, "resolve_command") and rest and not rest[0].startswith("-"):
        name, command, rest = command.resolve_command(context, rest)  # fails if there is none of this name
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
    known = {"--help", *(each for option in command.params for each in (*option.opts, *option.secondary_opts))}
    unknown = [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]
    assert not unknown


def test_there_are_commands() -> None:
    assert len(ONE_HOST) >= 5
    assert len(NAMED) >= 15
