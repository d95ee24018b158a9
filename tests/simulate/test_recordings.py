"""Recordings of chaos: they play the run that was recorded, whatever the generator would draw today, or say that they
cannot; and those of faults that were found show that these are fixed."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from hoplite_ucx.simulate.actions import Kill, Recording, RecordingError, Restart
from hoplite_ucx.simulate.chaos import record_seed, replay
from hoplite_ucx.simulate.drawing import Draw
from hoplite_ucx.simulate.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.jsonl"))
MUTANT_SEED = 16
"""A seed that notices the mutant no-flush."""


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_what_was_fixed(path: Path) -> None:
    outcome = replay(Recording.read(path))
    assert outcome.ok, outcome.problem


def test_the_table_of_faults_names_tests_and_recordings_that_there_are() -> None:
    tables = (ROOT / "docs" / "history" / "faults-found.md").read_text()
    code = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert set(re.findall(r"`(test_\w+)`", tables)) <= set(re.findall(r"def (test_\w+)", code))
    assert set(re.findall(r"`([\w-]+)\.jsonl`", tables)) == {path.stem for path in RECORDINGS}


def test_a_replay_is_the_same_run(tmp_path: Path) -> None:
    for seed in range(20):
        outcome, recording = record_seed(seed)
        recording.write(tmp_path / "run.jsonl")
        again = replay(Recording.read(tmp_path / "run.jsonl"), tell=True)
        assert again.story == outcome.story
        assert (again.events, again.faults, again.gets) == (outcome.events, outcome.faults, outcome.gets)


def test_a_replay_stays_the_same_run_when_the_generator_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, recording = record_seed(7)
    some_size = Draw.some_size

    def asks_once_more(draw: Draw) -> int:
        draw.random.random()
        return some_size(draw)

    monkeypatch.setattr(Draw, "some_size", asks_once_more)
    drawn, _ = record_seed(7)
    assert drawn.story != outcome.story, "the seed means another run now"
    assert replay(recording, tell=True).story == outcome.story


def test_a_replay_fails_as_the_run_did(tmp_path: Path) -> None:
    cluster = MUTANTS["no-flush"].cluster()
    outcome, recording = record_seed(MUTANT_SEED, cluster)
    assert recording.problem == outcome.problem is not None
    recording.write(tmp_path / "run.jsonl")
    recording = Recording.read(tmp_path / "run.jsonl")
    again = replay(recording, cluster)
    assert (again.problem, again.story) == (outcome.problem, outcome.story)
    assert replay(recording).ok, "the same, with the rule in its place"


def test_a_replay_that_becomes_another_run_says_so() -> None:
    _, recording = record_seed(7)
    twice = replace(recording, steps=((0.06, Kill(0)), (0.07, Kill(0))))
    outcome = replay(twice)
    assert outcome.diverged
    assert outcome.problem == "the recording does not fit any more: at 0.070000 kill is not possible at h0"
    assert replay(replace(recording, steps=((0.06, Kill(0)), (0.07, Restart(0))))).ok


@pytest.mark.parametrize("content", [b"", b"{}\n", b'{"format":1}\n', b"[1]\n", b"\xff\n"])
def test_what_is_not_a_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=r"run.jsonl is not a recording"):
        Recording.read(path)


def test_a_recording_of_another_format_or_setting_is_refused(tmp_path: Path) -> None:
    _, recording = record_seed(7)
    path = tmp_path / "run.jsonl"
    recording.write(path)
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":2'))
    with pytest.raises(RecordingError, match="has format 2, and this version reads 1"):
        Recording.read(path)
    settings = {**recording.setup.settings, "gone": 1}
    with pytest.raises(RecordingError, match="no setting gone"):
        replay(replace(recording, setup=replace(recording.setup, settings=settings)))
