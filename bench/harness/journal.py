"""What a run has told so far, as JSON lines that are written as they come: an interrupted run goes on from them.

Every line is an object. `{"run": …}` begins a run; `{"part": …, "begun": …}` begins a part, and what an earlier attempt
at it told does not count any more; `{"part": …, "finished": …}` says that it need not be run again. All other lines are
records of their part: figures, or what was not run and why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hoplite_ucx.bench.hosts.line_process import PeerError

__all__ = ["Journal", "Record"]

Record = dict[str, Any]


class Journal:
    @classmethod
    def in_folder(cls, folder: Path) -> Journal:
        """The one that lies beside a report. The folder is made if it is not there."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PeerError(f"{folder} cannot be created: {error}") from error
        return cls(folder / "records.jsonl")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: list[Record] = []
        """What each of the runs that wrote here said of itself."""
        self._records: dict[str, list[Record]] = {}
        self._finished: set[str] = set()
        self._read()

    @property
    def records(self) -> list[Record]:
        return [record for told in self._records.values() for record in told]

    @property
    def lines(self) -> list[str]:
        """All that counts, as it is to be read by others."""
        return [json.dumps(line) for line in ({"run": run} for run in self.runs)] + [
            json.dumps(record) for record in self.records
        ]

    def has_finished(self, part: str) -> bool:
        return part in self._finished

    # --- writing -----------------------------------------------------------------------------------------------

    def begin_run(self, about: Record) -> None:
        self._write({"run": about})

    def begin(self, part: str) -> None:
        self._write({"part": part, "begun": True})

    def tell(self, part: str, record: Record) -> None:
        self._write({"part": part, **record})

    def finish(self, part: str, seconds: float) -> None:
        self._write({"part": part, "finished": True, "took_seconds": round(seconds, 2)})

    def _write(self, line: Record) -> None:
        self._take(line)
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise PeerError(f"{self.path} cannot be written: {error}") from error

    # --- reading -----------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            text = self.path.read_text() if self.path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise PeerError(f"{self.path} cannot be read: {error}") from error
        whole, _, torn = text.rpartition("\n")
        if torn:  # its writer was killed while writing
            self.path.write_text(f"{whole}\n" if whole else "")
        for number, written in enumerate(whole.splitlines(), 1):
            try:
                line = json.loads(written)
                self._take(line)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise PeerError(
                    f"line {number} of {self.path} is not a record of this report ({error}); choose another --output"
                ) from error

    def _take(self, line: Record) -> None:
        if "run" in line:
            self.runs.append(dict(line["run"]))
            return
        part = line["part"]
        if "begun" in line:
            self._records[part] = []
        elif "finished" in line:
            self._finished.add(part)
        else:
            self._records.setdefault(part, []).append(line)
