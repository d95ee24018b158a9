"""The paper's applications on Ray, plain and with hoplite, side by side on emulated hosts.

`programs/` holds what a Ray user would write, each application twice; the two differ in the lines that use hoplite and
in no others. `pieces/` are the models, data and environments both use. `job` says what one run of a program is,
`bounds` what it can reach at best, `plan` which runs there are, `running` runs them, and `report` shows them.
"""
