"""Every error that a user can catch has its entry among the remedies."""

import re

import pytest

from hoplite_ucx import errors
from tests.manual.conftest import ROOT

PAGE = (ROOT / "docs" / "operating" / "troubleshooting.md").read_text()
ERRORS = [
    name for name in errors.__all__ if isinstance(value := getattr(errors, name), type) and issubclass(value, Exception)
]


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_has_its_entry(name: str) -> None:
    if name == "HopliteError":  # the base of all
        assert name in PAGE
        return
    entry = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert entry is not None
    assert len(entry[1].split()) > 15


def test_the_page_has_no_entry_for_an_error_that_is_gone() -> None:
    assert set(re.findall(r"^## (\w+Error)$", PAGE, re.MULTILINE)) == set(ERRORS) - {"HopliteError"}
