"""The applications as a Ray user writes them: in each folder `plain.py`, and `hoplite.py` with the changed lines."""
