"""What the command writes to: a terminal, a file or a pipe, which may be full, closed, or lack a character.

`prepare` puts two streams in the place of Python's. They replace a character that the encoding does not have by a
similar one of the same width. Output that cannot be written ends the command with an `OutputError`, except into a
closed pipe, which ends it silently. What cannot be written to standard error is dropped: there is nowhere to say so.
"""

import codecs
import io
import os
import sys
from typing import Any, TextIO

__all__ = ["OutputError", "prepare"]

_SIMILAR = "similar"
_INSTEAD = {"→": ">", "▶": ">", "↪": ">", "←": "<", "↻": "@", "✗": "x", "×": "x", "·": ".", "…": ".", "µ": "u"}
_STDOUT, _STDERR = 1, 2


class OutputError(OSError):
    """Standard output cannot be written."""

    def __str__(self) -> str:
        return f"standard output cannot be written: {self.strerror}"


def prepare() -> None:
    """Make the streams. What was closed is opened on nothing: else the next file or socket would take its number, and
    children would write to that."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(opened, True)
    os.close(opened)
    codecs.register_error(_SIMILAR, _similar)
    sys.stdout = _stream(sys.stdout, _Output(_STDOUT, "wb", closefd=False))
    sys.stderr = _stream(sys.stderr, _Remarks(_STDERR, "wb", closefd=False))


def _stream(old: TextIO | None, file: io.RawIOBase) -> TextIO:
    """Into this file, and otherwise like the old one, which is None if it was closed."""
    encoding = "utf-8" if old is None else old.encoding
    interactive = isinstance(old, io.TextIOWrapper) and old.line_buffering
    return io.TextIOWrapper(io.BufferedWriter(file), encoding, _SIMILAR, line_buffering=interactive)


class _Output(io.FileIO):
    _failed = False

    def write(self, data: Any, /) -> int:
        if self._failed:  # this was said, and what is still in buffers has nowhere to go
            return len(data)
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            self._failed = True
            raise OutputError(error.errno, error.strerror) from error


class _Remarks(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _similar(error: UnicodeError) -> tuple[str | bytes, int]:
    """For `codecs`: what stands for the first character that cannot be encoded. A byte of a file name that is not
    text, which Python keeps as half a character, is written as that byte."""
    assert isinstance(error, UnicodeEncodeError)
    character, following = error.object[error.start], error.start + 1
    if "\udc80" <= character <= "\udcff":
        return bytes([ord(character) - 0xDC00]), following
    return _INSTEAD.get(character, "?"), following
