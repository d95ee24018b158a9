"""Nothing that was tried in the first hour surprises anybody."""

import pytest

from tests.first_hour.findings import Finding, all_findings


@pytest.mark.parametrize("found", all_findings(), ids=lambda found: f"{found.number}-{found.tried.replace(' ', '-')}")
def test_a_finding(found: Finding) -> None:
    assert found.try_it()
