"""On which line of a TOML file each key stands: `tomllib` reads values, and forgets where it found them.

A small scanner over text that `tomllib` has accepted. It follows tables, arrays of tables, dotted and quoted keys,
arrays and inline tables, and skips strings of all four kinds and comments. It knows nothing of values.
"""

import re
from typing import TypeAlias

__all__ = ["Path", "line_of", "lines_of_keys"]

Path: TypeAlias = tuple[str | int, ...]
"""Keys from the top of the file, and indices of arrays: `("links", "rules", 0, "transport")`."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"((?:[^"\\]|\\.)*)"')
_LITERAL = re.compile(r"'([^']*)'")
_LONG_BASIC = re.compile(r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})', re.DOTALL)
_LONG_LITERAL = re.compile(r"'''.*?'''(?:'{0,2})", re.DOTALL)
_PLAIN = re.compile(r"[^,\]}#\n]*")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|x([0-9A-Fa-f]{2})|(.))")
_ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b", '"': '"', "\\": "\\"}


def lines_of_keys(text: str) -> dict[Path, int]:
    """Of every key, table and element of an array, counted from 1. The text must be TOML."""
    return _Scanner(text).scan()


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """Of a key, or of the nearest table around it that stands somewhere."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines: dict[Path, int] = {}
        self._elements: dict[Path, int] = {}  # of arrays of tables
        self._counted = (0, 1)  # up to which character lines were counted, and how many

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        self._skip_blank()
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip_blank()
        return self._lines

    def _header(self) -> Path:
        brackets = 2 if self._text.startswith("[[", self._at) else 1
        line = self._line()
        self._at += brackets
        names = self._key()
        self._at += brackets
        path: Path = ()
        for number, name in enumerate(names, 1):
            path = (*path, name)
            self._lines.setdefault(path, line)
            if number == len(names) and brackets == 2:
                index = self._elements[path] = self._elements.get(path, -1) + 1
                path = (*path, index)
                self._lines[path] = line
            elif path in self._elements:
                path = (*path, self._elements[path])
        return path

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for name in self._key():
            path = (*path, name)
            self._lines.setdefault(path, line)
        self._at += 1  # =
        self._skip_blank()
        self._value(path)

    def _value(self, path: Path) -> None:
        text, at = self._text, self._at
        if text.startswith('"""', at):
            self._match(_LONG_BASIC)
        elif text.startswith("'''", at):
            self._match(_LONG_LITERAL)
        elif text.startswith('"', at):
            self._match(_BASIC)
        elif text.startswith("'", at):
            self._match(_LITERAL)
        elif text.startswith("[", at):
            self._array(path)
        elif text.startswith("{", at):
            self._inline_table(path)
        else:
            self._match(_PLAIN)

    def _array(self, path: Path) -> None:
        self._at += 1
        index = 0
        while not self._ends("]"):
            self._lines[(*path, index)] = self._line()
            self._value((*path, index))
            index += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        while not self._ends("}"):
            self._pair(path)

    def _ends(self, bracket: str) -> bool:
        """Whether nothing follows in this array or inline table; else where the next thing in it begins."""
        self._skip_blank()
        if self._text.startswith(",", self._at):
            self._at += 1
            self._skip_blank()
        if self._text.startswith(bracket, self._at):
            self._at += 1
            return True
        return self._at >= len(self._text)

    def _key(self) -> list[str]:
        """The parts of a dotted key, and whatever blanks follow it."""
        names = []
        while True:
            self._skip_blank()
            if self._text.startswith('"', self._at):
                names.append(_ESCAPE.sub(_character, self._match(_BASIC)[1]))
            elif self._text.startswith("'", self._at):
                names.append(self._match(_LITERAL)[1])
            else:
                names.append(self._match(_BARE)[0])
            self._skip_blank()
            if not self._text.startswith(".", self._at):
                return names
            self._at += 1

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        assert match is not None, f"tomllib accepted what is not TOML at character {self._at}"
        self._at = match.end()
        return match

    def _skip_blank(self) -> None:
        self._match(_BLANK)

    def _line(self) -> int:
        at, line = self._counted
        line += self._text.count("\n", at, self._at)
        self._counted = (self._at, line)
        return line


def _character(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    return chr(int(code, 16)) if code else _ESCAPED[escape[4]]
