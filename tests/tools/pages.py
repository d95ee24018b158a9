"""The fenced blocks of the manual's pages, and which of them say that they are not run."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w{}-]*)[^\n]*\n(?P<body>.*?)^(?P=indent)```$", re.M | re.S)
_NOT_RUN = re.compile(r"\*Not run in the tests: (.+)\*$", re.S)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    not_run: str | None
    """The reason, which the paragraph before the block gives."""

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in _FENCE.finditer(text):
        before = text[: found.start()].rstrip().rpartition("\n\n")[2].strip()
        mark = _NOT_RUN.search(before)
        body = re.sub(rf"^{found['indent']}", "", found["body"], flags=re.M)
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page, line, found["language"], body, mark[1] if mark else None)


def all_blocks(*languages: str) -> list[Block]:
    return [block for page in PAGES if page.exists() for block in blocks(page) if block.language in languages]
