"""What imports what: modules that lead back to themselves cannot be read, tested or replaced one by one."""

import grimp
import pytest

# Imports for type checking and those inside of functions count like any other.
FREE_OF_CYCLES = ("hoplite_ucx.protocol",)


def cycles_in(graph: grimp.ImportGraph, package: str) -> set[str]:
    """The modules of the package that import themselves by way of others, with the shortest way."""
    modules = {package, *graph.find_descendants(package)}
    found = set()
    for module in sorted(modules):
        for imported in graph.find_modules_directly_imported_by(module):
            way = graph.find_shortest_chain(imported, module)
            if way is not None:
                found.add(" → ".join((module, *way)))
    return found


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("hoplite_ucx", cache_dir=None)


@pytest.mark.parametrize("package", FREE_OF_CYCLES)
def test_no_module_leads_back_to_itself(graph: grimp.ImportGraph, package: str) -> None:
    assert len(graph.find_descendants(package)) > 10, "nothing to look at"
    assert cycles_in(graph, package) == set()


def test_a_cycle_is_found_wherever_its_imports_stand() -> None:
    graph = grimp.ImportGraph()
    for module in ("a", "a.one", "a.two", "a.three"):
        graph.add_module(module)
    for importer, imported in (("a.one", "a.two"), ("a.two", "a.three"), ("a.three", "a.one"), ("a", "a.one")):
        graph.add_import(importer=importer, imported=imported)
    assert len(cycles_in(graph, "a")) == 3
    graph.remove_import(importer="a.three", imported="a.one")
    assert cycles_in(graph, "a") == set()
