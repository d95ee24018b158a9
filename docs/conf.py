"""How the manual is built from these pages and from the docstrings: `ci/docs`. The built pages load nothing from other
hosts: the theme uses the fonts of the system, and its scripts lie beside the pages."""

import os
import re
import sys
from importlib.util import find_spec
from typing import Any

import hoplite_ucx
import hoplite_ucx.aio
import hoplite_ucx.dask
import hoplite_ucx.errors
import hoplite_ucx.ray

sys.path.insert(0, os.path.dirname(__file__))
from command_pages import commands

project = "hoplite-ucx"
author = "the authors of hoplite-ucx"
version = release = hoplite_ucx.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["examples"]
html_theme = "furo"
html_title = f"{project} {version}"
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False

# Links to headings are written as GitHub makes them, so that the pages can be read there too.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "colon_fence"]

# Docstrings name code in single backticks; public names among them become links.
default_role = "py:obj"
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(collections|contextlib|dask|distributed|enum|numpy|os|ray|typing)\..*|Any|DTypeLike|.*\.OpenedResult")
]
autodoc_member_order = "bysource"
autodoc_mock_imports = [] if find_spec("ray") else ["ray"]
autodoc_type_aliases = {"npt.DTypeLike": "DTypeLike"}
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 90
add_module_names = False
toc_object_entries_show_parents = "hide"

_HOMES = {
    f"{value.__module__}.{name}": f"{module.__name__}.{name}"
    for module in (hoplite_ucx.errors, hoplite_ucx.dask, hoplite_ucx.ray, hoplite_ucx.aio, hoplite_ucx)
    for name in module.__all__
    if isinstance(value := getattr(module, name), type)
}
"""Types in signatures, by the module that defines them: the public name under which they are documented."""


def _find(app: Any, environment: Any, node: Any, content: Any) -> Any:
    """What a name in a signature or in backticks refers to, where Sphinx did not find it."""
    target = node.get("reftarget", "")
    if target in _HOMES and node.get("refdomain") == "py":
        domain = environment.get_domain("py")
        return domain.resolve_xref(environment, node["refdoc"], app.builder, "class", _HOMES[target], node, content)
    return content if node.get("reftype") == "obj" else None  # not a public name: code, without a link


def _shorten(*given: Any) -> tuple[str | None, str | None]:
    """Types as users write them."""
    signature, returns = given[-2:]
    if signature is not None:
        signature = signature.replace("<class 'numpy.float64'>", "np.float64")
        signature = re.sub(r"dtype: .*? = np\.float64", "dtype: DTypeLike = np.float64", signature)
    return signature, returns


def _fill(_: Any, name: str, source: list[str]) -> None:
    if name == "reference/commands":
        source[0] = source[0].replace("<!-- commands -->", commands())


def setup(app: Any) -> None:
    app.connect("source-read", _fill)
    app.connect("autodoc-process-signature", _shorten)
    app.connect("missing-reference", _find)
