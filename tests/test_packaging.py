"""What users install: wheels and sdists built from a clean checkout hold the whole package and nothing beside it."""

import os
import shutil
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.tools.packages import CHECKOUT, peers_ask_for, problems_of_a_program, run

LINKED = ("transports", "gpu", "bench")
PACKAGES = ("hoplite_ucx", *(f"hoplite_ucx.{name}" for name in LINKED), "hoplite_ucx.runtime", "hoplite_ucx.cli")


@pytest.fixture(scope="module")
def clean_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files as they are in the working tree, symlinks kept, and none of the untracked ones."""
    if shutil.which("git") is None or not (CHECKOUT / ".git").exists():
        pytest.skip("not a git checkout")
    target = tmp_path_factory.mktemp("packaging") / "checkout"
    for name in filter(None, run("git", "ls-files", "-z", cwd=CHECKOUT).split("\0")):
        source = CHECKOUT / name
        if source.is_symlink() or source.exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)
    return target


@pytest.fixture(scope="module")
def artefacts(clean_checkout: Path) -> tuple[Path, Path]:
    """The sdist and, built from it as installers do, the wheel."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "../dist", cwd=clean_checkout)
    dist = clean_checkout.parent / "dist"
    (sdist,) = dist.glob("*.tar.gz")
    (wheel,) = dist.glob("*.whl")
    return sdist, wheel


def _modules(root: Path) -> set[str]:
    """Every Python file of the package, by the path it is imported under."""
    found = set()
    for folder, _, files in os.walk(root / "hoplite_ucx", followlinks=True):
        found |= {str((Path(folder) / name).relative_to(root)) for name in files if name.endswith(".py")}
    return found


@pytest.mark.parametrize("name", LINKED)
def test_the_links_inside_the_package_are_relative(name: str) -> None:
    link = CHECKOUT / "hoplite_ucx" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../{name}"
    assert (link / "__init__.py").is_file()


def test_the_wheel_holds_every_module_and_no_other_top_level(
    clean_checkout: Path, artefacts: tuple[Path, Path]
) -> None:
    with zipfile.ZipFile(artefacts[1]) as wheel:
        names = wheel.namelist()
    assert len(names) == len(set(names))
    top_levels = {name.split("/")[0] for name in names}
    assert {name for name in top_levels if not name.endswith(".dist-info")} == {"hoplite_ucx"}
    assert {name for name in names if name.endswith(".py")} == _modules(clean_checkout)
    assert "hoplite_ucx/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_the_sdist_holds_real_files_instead_of_links(clean_checkout: Path, artefacts: tuple[Path, Path]) -> None:
    with tarfile.open(artefacts[0]) as sdist:
        members = sdist.getmembers()
    assert all(member.isreg() or member.isdir() for member in members)
    names = {member.name.split("/", 1)[1] for member in members if member.isreg()}
    assert {name for name in names if name.endswith(".py")} == _modules(clean_checkout)


def test_an_installed_wheel_imports_and_brings_only_hoplite_ucx(artefacts: tuple[Path, Path], tmp_path: Path) -> None:
    _install_and_import(tmp_path, artefacts[1])


def test_an_editable_install_exposes_only_hoplite_ucx(clean_checkout: Path, tmp_path: Path) -> None:
    _install_and_import(tmp_path, "--no-build-isolation", "--editable", clean_checkout)


def _install_and_import(tmp_path: Path, *what: str | Path) -> None:
    """Install into a fresh environment that sees the dependencies of this one, and look at it from elsewhere."""
    home = tmp_path / "env"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    # Only a path entry: it makes the dependencies importable without running this environment's own .pth files,
    # one of which may point at the checkout.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    before = set(os.listdir(site))
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed", *what, cwd=tmp_path)
    brought = set(os.listdir(site)) - before

    report = run(
        python, "-c",
        "import importlib, sys\n"
        f"for name in {PACKAGES!r}: print(importlib.import_module(name).__file__)\n"
        f"for name in {(*LINKED, 'ci', 'tests')!r}:\n"
        "    try: importlib.import_module(name)\n"
        "    except ModuleNotFoundError: continue\n"
        "    sys.exit(f'{name} is importable as a top-level module')\n",
        cwd=tmp_path,
    )  # fmt: skip
    files = [Path(line) for line in report.splitlines()]
    assert len(files) == len(PACKAGES)
    if "--editable" not in what:
        assert {name for name in brought if not name.endswith(".dist-info")} == {"hoplite_ucx"}
        assert all(file.is_relative_to(site) for file in files)
    assert all(not file.resolve().is_relative_to(CHECKOUT) for file in files)
    version = run(home / "bin" / "hoplite", "--version", cwd=tmp_path)
    assert version.startswith("hoplite 0.")
    assert run(python, "-m", "hoplite_ucx", "--version", cwd=tmp_path) == version
    usage = run(home / "bin" / "hoplite", "--help", cwd=tmp_path)
    assert run(python, "-m", "hoplite_ucx", "--help", cwd=tmp_path) == usage
    [problem] = problems_of_a_program(python, tmp_path)
    assert "Incompatible types in assignment" in problem


@pytest.mark.parametrize("index_has_it", [True, False])
def test_peers_take_the_torch_that_the_package_index_has(tmp_path: Path, index_has_it: bool) -> None:
    installs = peers_ask_for(tmp_path, index_has_it=index_has_it)
    assert all(".[peers]" in line for line in installs)
    assert ["torch==" in line for line in installs] == ([True] if index_has_it else [True, False])
    assert (tmp_path / ".venv-peers" / "stamp").exists()
