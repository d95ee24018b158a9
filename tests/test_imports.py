"""What imports what: modules that lead back to themselves cannot be read, tested or replaced one by one."""

from pathlib import Path

import grimp
import pytest


def cycles_in(graph: grimp.ImportGraph, package: str) -> set[str]:
    """The modules of the package that import themselves by way of others, with the shortest way. Imports for type
    checking and those inside of functions count like any other."""
    modules = {package, *graph.find_descendants(package)}
    found = set()
    for module in sorted(modules):
        for imported in graph.find_modules_directly_imported_by(module):
            way = graph.find_shortest_chain(imported, module)
            if way is not None:
                found.add(" → ".join((module, *way)))
    return found


def test_no_module_leads_back_to_itself() -> None:
    graph = grimp.build_graph("hoplite_ucx", cache_dir=None)
    seen = graph.find_descendants("hoplite_ucx")
    assert {"hoplite_ucx.protocol.errors", "hoplite_ucx.transports.interface", "hoplite_ucx.cli.start"} <= seen
    assert cycles_in(graph, "hoplite_ucx") == set()


def test_a_cycle_is_found_wherever_its_imports_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {
        "__init__": "",
        "one": "from knotted import two",
        "two": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from knotted.three import Three",
        "three": "def three():\n    import knotted.one",
        "apart": "import knotted.one",
    }
    (tmp_path / "knotted").mkdir()
    for name, text in modules.items():
        (tmp_path / "knotted" / f"{name}.py").write_text(text + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    graph = grimp.build_graph("knotted", cache_dir=None)
    assert {way.partition(" ")[0] for way in cycles_in(graph, "knotted")} == {
        "knotted.one",
        "knotted.two",
        "knotted.three",
    }
