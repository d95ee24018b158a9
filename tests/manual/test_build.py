"""The manual builds without warnings, its links lead somewhere, it asks no other host for anything, and every public
name is in it."""

import html.parser
import inspect
import re
import runpy
from pathlib import Path
from urllib.parse import unquote

import pytest

import hoplite_ucx
import hoplite_ucx.aio
import hoplite_ucx.dask
import hoplite_ucx.errors
import hoplite_ucx.ray
from tests.manual.conftest import ROOT

pytestmark = pytest.mark.timeout(900)  # the first test builds the manual, in some 15 s of an idle core

FOREIGN = re.compile(r"^(https?:)?//")
FETCHED = re.compile(r"(?:fetch|import|importScripts|\.open)\(\s*['\"`][^'\"`]*(?:https?:)?//[^'\"`]+")
LOADED = {"src", "srcset", "data", "poster"}
"""Attributes whose address a browser loads by itself. A link is loaded only when somebody follows it."""


class Page(html.parser.HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "license"):
            self.loaded.append(given.get("href", ""))
        self.loaded += [value for name, value in given.items() if name in LOADED]


@pytest.fixture(scope="module")
def pages(manual: Path) -> dict[Path, Page]:
    return {path.resolve(): Page(path) for path in manual.rglob("*.html")}


def test_links_lead_to_pages_and_places_in_them(manual: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for page in pages.values():
        for link in page.links + page.loaded:
            if FOREIGN.match(link) or link.startswith(("mailto:", "data:")):
                continue
            path, _, place = link.partition("#")
            target = (page.path.parent / unquote(path.partition("?")[0])).resolve() if path else page.path.resolve()
            found = pages.get(target)
            if not target.exists() or (place and found is not None and unquote(place) not in found.anchors):
                broken.append(f"{page.path.relative_to(manual)}: {link}")
    assert not broken, "\n".join(broken)
    assert len(pages) > 20


def test_no_page_loads_anything_from_another_host(manual: Path, pages: dict[Path, Page]) -> None:
    loaded = [f"{page.path.name}: {link}" for page in pages.values() for link in page.loaded if FOREIGN.match(link)]
    for style in manual.rglob("*.css"):
        addresses = re.findall(r"url\(\s*['\"]?([^)'\"]+)|@import\s+['\"]([^'\"]+)", style.read_text())
        loaded += [f"{style.name}: {each}" for pair in addresses for each in pair if FOREIGN.match(each)]
    for script in [*manual.rglob("*.js"), *manual.rglob("*.html")]:
        # An address in a script is harmless unless the script fetches it.
        asks = re.findall(
            r"(?:fetch|import|importScripts|\.open)\(\s*['\"`][^'\"`]*(?:https?:)?//[^'\"`]+", script.read_text()
        )
        loaded += [f"{script.name}: {each}" for each in asks]
    assert not loaded, "\n".join(loaded)


@pytest.mark.parametrize(
    "module",
    [hoplite_ucx, hoplite_ucx.aio, hoplite_ucx.dask, hoplite_ucx.ray, hoplite_ucx.errors],
    ids=lambda module: module.__name__,
)
def test_every_public_name_is_in_the_reference(module: object, manual: Path, pages: dict[Path, Page]) -> None:
    name = module.__name__  # type: ignore[attr-defined]
    anchors = {anchor for page in pages.values() for anchor in page.anchors}
    described = {*anchors, *(f"{name}.{anchor.rpartition('.')[2]}" for anchor in anchors if shared_with(name, anchor))}
    missing = [each for each in module.__all__ if f"{name}.{each}" not in described]  # type: ignore[attr-defined]
    assert not missing


def shared_with(module: str, anchor: str) -> bool:
    """Whether a name of the module is described under this anchor: the twins for asyncio are methods of a class, and
    errors and refs are those of the package."""
    return {
        "hoplite_ucx.aio": anchor.startswith(("hoplite_ucx.aio.AsyncCluster.", "hoplite_ucx.is_", "hoplite_ucx.new_"))
        or anchor in ("hoplite_ucx.ref_for", "hoplite_ucx.shutdown"),
        "hoplite_ucx.errors": anchor.startswith("hoplite_ucx.") and anchor.endswith("Error"),
    }.get(module, False)


def test_signatures_have_every_parameter(manual: Path) -> None:
    """The functions of the package are methods of a cluster, of which the first parameter is easily lost."""
    text = (manual / "reference" / "calls.html").read_text()
    shown = {
        name: re.findall(r'class="sig-param"><span class="n"><span class="pre">(\w+)<', heading)
        for name, heading in re.findall(r'<dt class="sig[^>]*id="hoplite_ucx\.(\w+)">(.*?)</dt>', text, re.DOTALL)
    }
    for name in ("put", "get", "wait", "reduce", "create", "rejoin", "init"):
        assert shown[name] == list(inspect.signature(getattr(hoplite_ucx, name)).parameters)


def test_pictures_are_what_their_program_draws() -> None:
    """`python docs/pictures/draw.py` draws them again."""
    folder = ROOT / "docs" / "pictures"
    drawn = dict(runpy.run_path(str(folder / "draw.py"))["pictures"]())
    assert len(drawn) >= 3
    for name, content in drawn.items():
        assert (folder / name).read_text() == content, name
