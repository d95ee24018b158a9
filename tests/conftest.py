"""Settings of the whole test run."""

from hypothesis import settings

# Timing on shared machines says nothing about an example; pytest-timeout bounds each test.
settings.register_profile("hoplite", deadline=None)
settings.load_profile("hoplite")
