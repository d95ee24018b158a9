"""A file of figures that grows by one line per figure, and from which a later run continues.

    with FigureFile(path) as file:
        if not file.has(operation, hosts, size, rate, repeat=3): file.append(measured.json_line())

Only one run uses it at a time. A file that contains anything but JSON lines is refused and left as it is; an incomplete
last line, from a run that was killed while writing, is removed. A new file without any figure is removed as well.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from hoplite_ucx.bench.harness.machine_facts import versions
from hoplite_ucx.bench.harness.records import Figure, Key, failure_in, figure_in
from hoplite_ucx.bench.hosts.line_process import PeerError

__all__ = ["FigureFile"]


class FigureFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._is_new = not path.exists()
        self._rows: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        try:
            self._file = self._path.open("a+b")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BlockingIOError:
            self._close()
            raise PeerError(f"{self._path} is being written by another run; wait for it, or use another file") from None
        except OSError as error:
            self._close()
            raise PeerError(f"{self._path} cannot be written: {error.strerror}") from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def has(self, operation: str, hosts: int, size: int, rate: float, *, repeat: int, untimed: int = 1) -> bool:
        """Whether our own figure of this is in the file: with as many rounds, by this version."""
        wanted = {
            "what": operation, "operation": operation, "hosts": hosts, "size": size, "rate": rate, "untimed": untimed,
            "versions": versions(),
        }  # fmt: skip
        return any(
            len(row.get("runs", ())) >= repeat and all(row.get(name) == value for name, value in wanted.items())
            for row in self._rows
        )

    def figures(self) -> Iterator[Figure | None]:
        return map(figure_in, self._rows)

    def failures(self) -> dict[Key, str]:
        """The cells that failed, and why."""
        return dict(failure for row in self._rows if (failure := failure_in(row)) is not None)

    def append(self, line: str) -> None:
        assert self._file is not None
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise PeerError(f"{self._path} cannot be written: {error.strerror}") from error
        self._rows.append(json.loads(line))

    def _read(self) -> None:
        assert self._file is not None
        self._file.seek(0)
        *whole, cut_off = self._file.read().split(b"\n")
        try:
            rows = [json.loads(line) for line in whole if line.strip()]
        except ValueError as error:
            raise self._no_figures(str(error)) from error
        if not all(isinstance(row, dict) for row in rows):
            raise self._no_figures("a line is not a JSON object")
        if cut_off:
            if not cut_off.startswith(b'{"what"'):
                raise self._no_figures("its last line is not one")
            self._file.truncate(sum(len(line) + 1 for line in whole))
        self._rows = rows

    def _no_figures(self, why: str) -> PeerError:
        return PeerError(f"{self._path} contains something other than figures ({why}); use another file")

    def _close(self) -> None:
        if self._file is not None:
            if self._is_new and not self._rows:
                self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None
