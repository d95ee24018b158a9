"""Builds the made-up driver, and a CuPy on top of it, once per environment; says what is missing where it cannot.

CuPy's wheel is linked to CUDA's runtime statically, and that one asks the driver for private tables, which must not be
imitated. So its one module that calls the runtime is built again from CuPy's source, linked to a runtime of ours that
knows public driver calls only. Everything else of CuPy is the wheel's, by symbolic links.
"""

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_MODULE = Path("cupy_backends/cuda/api")
_COMPILE = ["-shared", "-fPIC", "-O2", "-w"]

_CYTHON = """
import sys
from Cython import __version__
from Cython.Build import cythonize
from setuptools import Extension

cythonize(
    [Extension("cupy_backends.cuda.api.runtime", ["cupy_backends/cuda/api/runtime.pyx"], language="c++")],
    language_level=3,
    quiet=True,
    compiler_directives={
        "binding": False, "c_api_binop_methods": True, "embedsignature": True, "freethreading_compatible": True,
        "warn.deprecated.IF": False,
    },
    compile_time_env={
        "CUPY_CUDA_VERSION": int(sys.argv[1]), "CUPY_CUFFT_STATIC": False, "CUPY_CYTHON_VERSION": __version__,
        "CUPY_HIP_VERSION": 0, "CUPY_USE_CUDA_PYTHON": False,
    },
)
"""


class MissingError(Exception):
    """The driver cannot be built here; the text is the one reason to skip."""


@dataclass(frozen=True, slots=True)
class Made:
    """A folder with the libraries, and one to be imported from before the installed packages."""

    libraries: Path
    packages: Path
    kernels: Path

    def environment(self, **settings: str) -> dict[str, str]:
        """The environment of a process that has made-up GPUs; settings are those of cuda.c, without MADE_UP_."""
        rest = {name: value for name, value in os.environ.items() if not name.startswith(("MADE_UP_", "CUDA_", "UCX_"))}
        paths = [str(self.packages), os.environ.get("PYTHONPATH", "")]
        return {
            **rest,
            "LD_LIBRARY_PATH": f"{self.libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":"),
            "PYTHONPATH": ":".join(path for path in paths if path),
            # CUDA's own, of another package, would be found first.
            "LD_PRELOAD": str(self.libraries / "libnvrtc.so.12"),
            "CUPY_CACHE_DIR": str(self.kernels),
            "MADE_UP_PYTHON": sys.executable,
            **{f"MADE_UP_{name}": value for name, value in settings.items()},
        }


@dataclass(frozen=True, slots=True)
class _Tools:
    headers: Path
    wheel: Path
    source: Path
    version: str

    def libraries_key(self) -> str:
        """What the libraries and the module depend on."""
        cuda = re.search(rb"#define CUDA_VERSION (\d+)", (self.headers / "cuda.h").read_bytes())
        assert cuda is not None
        versions = [importlib.metadata.version("Cython"), self.version, platform.python_version(), cuda[1].decode()]
        return _digest(versions, sorted(_HERE.rglob("*")))

    def kernels_key(self) -> str:
        """What compiled kernels depend on, besides their source."""
        return _digest([], [_HERE / "compile_kernels.py", *sorted((_HERE / "kernel_headers").iterdir())])


def _digest(versions: list[str], files: list[Path]) -> str:
    compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256("\0".join([compiler, *versions]).encode())
    for path in files:
        if path.is_file() and path.suffix != ".pyc":
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def build() -> Made:
    """Build everything, or find it built. Several processes may ask at the same time."""
    tools = _find_tools()
    place = Path(sys.prefix) / "made-up-gpu"
    kernels = place / f"kernels-{tools.kernels_key()}"
    kernels.mkdir(parents=True, exist_ok=True)
    folder = place / tools.libraries_key()
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=place) as scratch:
                made = Path(scratch) / "made"
                _build_libraries(made / "lib", Path(scratch), tools)
                _build_packages(made / "packages", tools)
                made.rename(folder)
    return Made(folder / "lib", folder / "packages", kernels)


def _find_tools() -> _Tools:
    lacking = [program for program in ("gcc", "g++", "nm", "tar") if shutil.which(program) is None]
    lacking += [name for name in ("cupy", "Cython", "setuptools", "pynvml") if importlib.util.find_spec(name) is None]
    if lacking:
        raise MissingError(f"made-up GPUs need {', '.join(lacking)}: run ci/setup")
    spec = importlib.util.find_spec("cupy")
    assert spec is not None
    assert spec.origin is not None
    wheel = Path(spec.origin).parent.parent
    version = next(
        found.version for found in importlib.metadata.distributions() if found.name.lower().startswith("cupy-cuda12x")
    )
    if not version.startswith("14."):
        raise MissingError(f"made-up GPUs need CuPy 14, not {version}: run ci/setup")
    source = Path(sys.prefix) / "sources" / f"cupy-{version}.tar.gz"
    if not source.exists():
        raise MissingError(f"made-up GPUs need the source of CuPy {version}: run ci/setup")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        raise MissingError("made-up GPUs need the headers of Python (libpython3-dev): run ci/setup")
    places = [Path(path) / "nvidia/cuda_runtime/include" for path in sys.path]
    headers = next((place for place in places if (place / "cuda.h").exists()), None)
    if headers is None:
        raise MissingError("made-up GPUs need the headers of CUDA 12 (nvidia-cuda-runtime-cu12): run ci/setup")
    return _Tools(headers, wheel, source, version)


def _run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def _build_libraries(into: Path, scratch: Path, tools: _Tools) -> None:
    into.mkdir(parents=True)
    include = f"-I{tools.headers}"
    driver = into / "libcuda.so.1"
    _run("gcc", *_COMPILE, include, "-Wl,-soname,libcuda.so.1", "-o", driver, _HERE / "cuda.c", "-ldl", "-lpthread")
    for name, source in (("libnvrtc.so.12", "nvrtc.c"), ("libnvidia-ml.so.1", "nvml.c")):
        _run("gcc", *_COMPILE, f"-Wl,-soname,{name}", "-o", into / name, _HERE / source, "-ldl")
    shutil.copy(_HERE / "compile_kernels.py", into)
    shutil.copytree(_HERE / "kernel_headers", into / "kernel_headers")

    _run("tar", "-xzf", tools.source, "-C", scratch)
    source = scratch / f"cupy-{tools.version}"
    cuda = re.search(r"#define CUDA_VERSION (\d+)", (tools.headers / "cuda.h").read_text())
    assert cuda is not None
    _run(sys.executable, "-c", _CYTHON, cuda[1], cwd=source)
    module = scratch / "runtime.o"
    folders = [f"-I{_HERE / 'headers'}", include, f"-I{sysconfig.get_paths()['include']}", f"-I{source}"]
    _run("g++", "-c", "-fPIC", "-O1", "-w", *folders, "-o", module, source / _MODULE / "runtime.cpp")

    runtime = (_HERE / "cudart.c").read_text()
    wanted = set(re.findall(r" U (cuda\w+)", _run("nm", "-u", module)))
    refused = wanted - set(re.findall(r"\b(cuda\w+)\(", runtime))
    code = runtime + "\n".join(f"API {name}() {{ return report(801); }}" for name in sorted(refused))
    (scratch / "cudart.c").write_text(code)
    cudart = into / "libcudart.so.12"
    _run("gcc", *_COMPILE, include, "-Wl,-soname,libcudart.so.12", "-o", cudart, scratch / "cudart.c", driver)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    _run("g++", "-shared", "-o", into / f"runtime{suffix}", module, cudart)


def _build_packages(into: Path, tools: _Tools) -> None:
    """CuPy as it is installed, save for the one module."""
    (into / _MODULE).mkdir(parents=True)
    (into / "cupy").symlink_to(tools.wheel / "cupy")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for folder in (_MODULE, *_MODULE.parents[:-1]):
        for path in (tools.wheel / folder).iterdir():
            if path.name != "__pycache__" and not (into / folder / path.name).exists():
                (into / folder / path.name).symlink_to(path)
    (into / _MODULE / f"runtime{suffix}").unlink()
    (into / _MODULE / f"runtime{suffix}").symlink_to(Path("../../../../lib") / f"runtime{suffix}")
