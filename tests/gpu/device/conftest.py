"""Tests that use a CUDA device: a real one where there is one, else made-up ones. The file test_on_made_up_gpus.py of
the folder above runs these files in processes that have such devices."""

import os
from pathlib import Path

import pytest

MADE_UP = "MADE_UP_PYTHON" in os.environ

if not MADE_UP and not Path("/dev/nvidiactl").exists():
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.gpu)
