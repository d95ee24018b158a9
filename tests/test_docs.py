"""The pages of the documentation: their links lead somewhere, and texts for users keep to plain words."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")

# Phrases that must be read twice, and what to write instead.
DIALECT = {
    r"(?<!there )\bis no (?!longer\b|more\b|less\b)\w+": "is not a ...",
    r"(?<!there )\bare no (?!longer\b|more\b|less\b)\w+": "are not ...",
    r"\bmended\b|\bmends?\b": "fixed",
    r"\bwhoever\b": "name the subject",
    r"\bhow manyth\b": "sequence number",
    r"\blacked means\b": "ran out of memory or file descriptors",
    r"\bcome[s]? to nothing\b|\bcame to nothing\b": "fails",
    r"\b(is|are|was|were) told\b": "is notified, or name who reports what",
    r"\bcannot be had\b|\bcould be had\b": "is not available",
    r"\blook whether\b": "check whether",
    r"\bstands? more than once\b": "is listed more than once",
    r"\bhas to do with\b": "name the relation",
}


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages_and_headings(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in LINK.findall(text):
        if link.startswith(("http://", "https://")):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if heading:
            assert heading in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_that_pages_name_exist(page: Path) -> None:
    folders = ("hoplite_ucx", "transports", "bench", "gpu", "tests")
    for name in re.findall(r"`(\w+/[\w/]+\.py)`", page.read_text()):
        places = [ROOT / name, *(path for folder in folders for path in (ROOT / folder).rglob(name))]
        assert any(path.exists() for path in places), name


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """String literals of a module; its docstrings too, where users read them in a command's help or with `help()`."""
    tree = ast.parse(path.read_text())
    shown = path.parent.name in ("cli", "bench") or path.name in API
    silent = set() if shown else {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.lineno, node.value


def dialect_in(text: str) -> list[str]:
    return [
        f"{found.group()!r}: write {better!r}"
        for phrase, better in DIALECT.items()
        for found in re.finditer(phrase, text, re.IGNORECASE)
    ]


API = ("api.py", "default_cluster.py", "in_place_puts.py", "object_info.py", "refs.py", "errors.py")
USERS_READ = [
    path
    for folder in ("hoplite_ucx/cli", "hoplite_ucx/runtime", "hoplite_ucx/protocol", "transports", "gpu")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name != "invariants.py" and "testing" not in path.parts  # read by those who work on the machines
]


@pytest.mark.parametrize("path", USERS_READ, ids=lambda path: str(path.relative_to(ROOT)))
def test_messages_use_plain_words(path: Path) -> None:
    found = [f"line {line}: {problem}" for line, text in messages(path) for problem in dialect_in(text)]
    assert not found, "\n".join(found)


WRITTEN = [page for page in PAGES if "history" not in page.parts and page.name != "CHANGELOG.md"]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_plain_words(page: Path) -> None:
    lines = enumerate(page.read_text().splitlines(), 1)
    found = [f"line {line}: {problem}" for line, text in lines for problem in dialect_in(text)]
    assert not found, "\n".join(found)
