"""Lines of keys: in every way in which TOML can write one, and never where `tomllib` sees no key."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ucx.settings.toml_lines import Path, line_of, lines_of_keys

EVERYTHING = '''# a comment with [brackets] and key = "value"
[cluster]
heartbeat = 0.1     # lease = 3
"lease" = 2.0
'suspicion' = 0.7
links.never = 1

[links]  # "
transport = """
require = "this is text, and no key"
[ucx]
""" # done
cooldown = 1

[[links.rules]]
host = "a # b"
tls = [
  "rc", # first
  "posix",
]

[[links.rules]]
ucx.options = { A = "}", "b c" = { d = [1, {e = 2}] } }
text = \'\'\'
key = 'x'
\'\'\'\'
[links.rules.sub]
deep = 1979-05-27T07:32:00Z
'''


def test_every_way_to_write_a_key() -> None:
    lines = lines_of_keys(EVERYTHING)
    expected: dict[Path, int] = {
        ("cluster",): 2,
        ("cluster", "heartbeat"): 3,
        ("cluster", "lease"): 4,
        ("cluster", "suspicion"): 5,
        ("cluster", "links"): 6,
        ("cluster", "links", "never"): 6,
        ("links",): 8,
        ("links", "transport"): 9,
        ("links", "cooldown"): 13,
        ("links", "rules"): 15,
        ("links", "rules", 0): 15,
        ("links", "rules", 0, "host"): 16,
        ("links", "rules", 0, "tls"): 17,
        ("links", "rules", 0, "tls", 0): 18,
        ("links", "rules", 0, "tls", 1): 19,
        ("links", "rules", 1): 22,
        ("links", "rules", 1, "ucx"): 23,
        ("links", "rules", 1, "ucx", "options"): 23,
        ("links", "rules", 1, "ucx", "options", "A"): 23,
        ("links", "rules", 1, "ucx", "options", "b c"): 23,
        ("links", "rules", 1, "ucx", "options", "b c", "d"): 23,
        ("links", "rules", 1, "ucx", "options", "b c", "d", 0): 23,
        ("links", "rules", 1, "ucx", "options", "b c", "d", 1): 23,
        ("links", "rules", 1, "ucx", "options", "b c", "d", 1, "e"): 23,
        ("links", "rules", 1, "text"): 24,
        ("links", "rules", 1, "sub"): 27,
        ("links", "rules", 1, "sub", "deep"): 28,
    }
    assert lines == expected
    assert set(paths(tomllib.loads(EVERYTHING))) == set(expected)


def test_what_stands_nowhere_is_where_its_table_is() -> None:
    lines = lines_of_keys("\n[links]\n")
    assert line_of(lines, ("links", "rules", 3, "host")) == 2
    assert line_of(lines, ("ucx", "tls")) is None


@pytest.mark.parametrize(("written", "name"), [('"\\u0061\\t\\""', 'a\t"'), ('"\\U0001F600"', "😀"), ("'\\u'", "\\u")])
def test_quoted_keys_are_what_tomllib_reads(written: str, name: str) -> None:
    text = f"\n[{written}]\n{written} . x = 1\n"
    assert tomllib.loads(text) == {name: {name: {"x": 1}}}
    assert lines_of_keys(text) == {(name,): 2, (name, name): 3, (name, name, "x"): 3}


def paths(value: Any, path: Path = ()) -> list[Path]:
    """Of every key and element that `tomllib` has found."""
    found = [path] if path else []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [below for key, entry in entries for below in paths(entry, (*path, key))]


BARE = st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True)
CHARACTERS = st.characters(exclude_categories=("Cs", "Cc"))
NAME = BARE | st.text(CHARACTERS, max_size=5)
TEXT = st.text(CHARACTERS | st.sampled_from("\"'#[]{}=,\n"), max_size=12)


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@st.composite
def values(draw: st.DrawFn, depth: int = 0) -> str:
    kind = draw(st.sampled_from(["number", "text", "long", "literal", *(["array", "table"] if depth < 3 else [])]))
    if kind == "number":
        return str(draw(st.integers(-99, 99)))
    if kind == "text":
        return quoted(draw(TEXT))
    if kind == "literal":
        return "'" + draw(TEXT).replace("'", "").replace("\n", "") + "'"
    if kind == "long":
        return '"""' + draw(TEXT).replace("\\", "").replace('"', "\n") + '"""'
    if kind == "array":
        gap = draw(st.sampled_from(["", " ", "\n", " # ] , [\n"]))
        return (
            "[" + "".join(f"{gap}{value}{gap}," for value in draw(st.lists(values(depth + 1), max_size=3))) + gap + "]"
        )
    names = draw(st.lists(NAME, max_size=3, unique=True))
    return "{ " + ", ".join(f"{quoted(name)} = {draw(values(depth + 1))}" for name in names) + " }"


@st.composite
def documents(draw: st.DrawFn) -> str:
    lines = []
    for name in draw(st.lists(NAME, max_size=4, unique=True)):
        header = f"[[{quoted(name)}]]" if draw(st.booleans()) else f"[ {quoted(name)} ]"
        for _ in range(draw(st.integers(1, 2)) if header.startswith("[[") else 1):
            lines.append(header + draw(st.sampled_from(["", " # [x]"])))
            for key in draw(st.lists(NAME, max_size=3, unique=True)):
                lines += draw(st.sampled_from([[], ["", "# a = 1"]]))
                lines.append(f"{quoted(key)}.x = {draw(values())}")
    return "\n".join(lines)


@given(documents())
def test_every_key_that_tomllib_finds_has_the_line_on_which_it_is_written(text: str) -> None:
    lines = lines_of_keys(text)
    assert set(lines) == set(paths(tomllib.loads(text)))
    written = text.split("\n")
    for path, line in lines.items():
        if isinstance(path[-1], str) and path[-1] != "x":
            assert quoted(path[-1]) in written[line - 1]


@given(st.text(max_size=60))
def test_whatever_tomllib_accepts_can_be_scanned(text: str) -> None:
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return
    assert set(lines_of_keys(text.replace("\r\n", "\n"))) == set(paths(tables))
