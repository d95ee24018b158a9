"""Shells ask their machines: they use methods, properties and declared data of a machine, and nothing inside of it."""

import ast
from pathlib import Path

import pytest

from hoplite_ucx.protocol import Directory, NodeState

_PACKAGE = Path(__file__).parents[2] / "hoplite_ucx"
_SIMULATED = ("cluster.py", "directory.py", "node.py", "streams.py", "combining.py", "users.py", "measure.py")
SHELLS = sorted(
    [*(_PACKAGE / "runtime").rglob("*.py"), *(_PACKAGE / "cli").rglob("*.py")]
    + [_PACKAGE / "simulate" / name for name in _SIMULATED]
)


def _questions() -> set[str]:
    machines = (NodeState, Directory)
    return {name for machine in machines for name in (*dir(machine), *machine.__annotations__)}


def _is_machine(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "machine") or (
        isinstance(node, ast.Name) and node.id == "machine"
    )


def reached_into(source: str) -> list[str]:
    """What is looked at inside of a machine."""
    questions = _questions()
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and _is_machine(node.value) and node.attr not in questions
    ]


@pytest.mark.parametrize("path", SHELLS, ids=lambda path: str(path.relative_to(_PACKAGE)))
def test_a_shell_looks_at_nothing_inside_of_its_machine(path: Path) -> None:
    source = path.read_text()
    if "hoplite_ucx.protocol" in source:  # else a machine there is a computer
        assert not reached_into(source)


def test_the_look_finds_what_it_looks_for() -> None:
    assert reached_into("self.machine.fetching.assembling.assemblies")
    assert reached_into("memory = node.machine.memory")
    assert not reached_into("self.machine.handle(event, 0.0); machine.incarnation")
