"""Compiles a CUDA source for this processor: compile_kernels.py FOLDER OPTIONS... reads FOLDER/source.cu and writes
FOLDER/image, a shared object that the made-up driver runs, and FOLDER/log.

Only what elementwise kernels need: no shared memory, no synchronisation between threads.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_KERNEL = re.compile(
    r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\((.*?)\)\s*\{", re.DOTALL
)  # fmt: skip


def definitions_and_folders(options: list[str]) -> Iterator[str]:
    """The options that g++ shares with NVRTC, without the folder of CUDA's own headers: cuda_on_cpu.h replaces them."""
    rest = iter(options)
    for option in rest:
        if option in ("-I", "-D"):
            option += next(rest)
        option = option.replace("--include-path=", "-I")
        if option.startswith("-D") or (option.startswith("-I") and not (Path(option[2:]) / "cuda_fp16.h").exists()):
            yield option


def split(parameters: str) -> Iterator[str]:
    """At commas outside of brackets."""
    depth, part = 0, ""
    for letter in parameters:
        depth += (letter in "<([{") - (letter in ">)]}")
        if letter == "," and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    if part.strip():
        yield part


def runners(source: str) -> Iterator[str]:
    """For each kernel: how large its arguments are, and a function that runs it for every thread of a grid."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
    for name, parameters in _KERNEL.findall(plain):
        types = [
            re.sub(r"\s*\w+$", "", re.sub(r"__restrict__|__grid_constant__", "", part).strip())
            for part in split(parameters)
        ]
        sizes = "".join(f"sizeof(made_up::bare<{kind}>), " for kind in types)
        values = ", ".join(f"v{index}" for index in range(len(types)))
        made = "\n".join(
            f"    auto v{index} = *(made_up::bare<{kind}> *)a[{index}];\n"
            f"    if (!made_up::resolve<{kind}>(v{index}, s[6], reach)) return 1;"
            for index, kind in enumerate(types)
        )
        yield f"""
extern "C" const int made_up_sizes_{name}[] = {{{sizes}-1}};
extern "C" int made_up_run_{name}(void **a, const unsigned *s, made_up::reacher reach) {{
{made}
    return made_up::everywhere(s, [&] {{ {name}({values}); }});
}}"""


def main(folder: Path, options: list[str]) -> int:
    source = (folder / "source.cu").read_text()
    program = "\n".join(['#include "cuda_on_cpu.h"', '#line 1 "source.cu"', source, *runners(source)])
    # No contraction: a * b + c rounds twice, as in NumPy; so a difference is not the compiler's.
    command = ["g++", "-x", "c++", "-", "-shared", "-fPIC", "-O1", "-w", "-std=c++17", "-ffp-contract=off"]
    command += [
        f"-I{Path(__file__).parent / 'kernel_headers'}",
        *definitions_and_folders(options),
        "-o",
        str(folder / "image"),
    ]
    done = subprocess.run(command, input=program, text=True, capture_output=True, check=False)
    (folder / "log").write_text(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
