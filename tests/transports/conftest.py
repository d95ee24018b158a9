"""Links that a busy machine may hold up."""

import pytest

from tests.tools.links import be_patient


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)
