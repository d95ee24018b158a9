"""Runs a module of this package in a new process: `python -P …/hoplite_ucx/run_module.py MODULE ARGUMENT...`.

`python -m` would search the current directory first, and its files may belong to another user. This script never
searches there. It uses the package that it belongs to, however the starting process found it; everything else comes
from Python's usual places, and last from beside the package.
"""

import importlib.util
import os
import runpy
import sys


def _load(folder: str) -> None:
    name = os.path.basename(folder)
    place = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(name, place, submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)


if __name__ == "__main__":
    _package = os.path.dirname(os.path.abspath(__file__))
    sys.path.append(os.path.dirname(_package))  # where `pip install --target` puts what the package needs
    _load(_package)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
