"""Builds the C++ extension where there is a compiler. SEQ2SEQ_FAST_BUILD chooses:

auto  build it; where that fails, install without it and keep the reason for `python -m seq2seq_fast`
none  leave it out
cpu   build it or fail
cuda  reserved for the CUDA kernels of a later version

The torch that will run must be installed already: pip install --no-build-isolation.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from glob import glob
from pathlib import Path

import torch
from setuptools import setup
from setuptools.errors import CompileError, LinkError
from torch.utils.cpp_extension import BuildExtension, CppExtension, get_cxx_compiler

mode = os.environ.get("SEQ2SEQ_FAST_BUILD", "auto")
if mode == "cuda":
    sys.exit("SEQ2SEQ_FAST_BUILD=cuda: the CUDA kernels come in a later version; use auto, cpu or none")
if mode not in ("auto", "none", "cpu"):
    sys.exit(f"SEQ2SEQ_FAST_BUILD={mode}: expected auto, none, cpu or cuda")

# ninja lies beside the interpreter, which need not be on PATH
os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])


def why_no_compiler() -> str | None:
    """Why a program with Python's and OpenMP's headers cannot be built; None where it can."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cpp")
        source.write_text("#include <Python.h>\n#include <omp.h>\n#include <vector>\nint main() {}\n")
        include = f"-I{sysconfig.get_path('include')}"
        command = [*shlex.split(get_cxx_compiler()), include, "-fopenmp", source, "-o", f"{folder}/probe"]
        try:
            result = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            return f"the C++ compiler {command[0]} does not run ({error.strerror}); install g++ and reinstall"
    if result.returncode == 0:
        return None
    problem = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr.strip())
    problem = problem.rpartition("error: ")[2]
    return f"the C++ compiler {command[0]} fails ({problem}); install what it misses and reinstall"


class Build(BuildExtension):
    """Builds seq2seq_fast._C, and beside it _build.py: with which torch, or why not."""

    def finalize_options(self):
        super().finalize_options()
        if self.editable_mode:
            # pip gives each editable install a new folder, where ninja would find nothing to reuse
            self.build_temp = f"build/editable-{sys.implementation.cache_tag}-torch-{torch.__version__}"

    def build_extensions(self):
        (extension,) = self.extensions
        built = Path(self.get_ext_fullpath(extension.name))
        built.unlink(missing_ok=True)
        reason = "SEQ2SEQ_FAST_BUILD=none left it out" if mode == "none" else why_no_compiler()
        if reason is None:
            try:
                super().build_extensions()
            except (RuntimeError, CompileError, LinkError) as error:
                stage = "link" if isinstance(error, LinkError) else "compile"
                reason = f"csrc does not {stage}; `SEQ2SEQ_FAST_BUILD=cpu pip install -v` shows why"
        if reason is not None:
            if mode == "cpu":
                raise CompileError(f"SEQ2SEQ_FAST_BUILD=cpu: {reason}")
            extension.optional = True
            print(f"seq2seq_fast: the C++ extension is not built: {reason}", file=sys.stderr)
        self.record = built.with_name("_build.py")
        self.record.parent.mkdir(parents=True, exist_ok=True)
        self.record.write_text(f"TORCH = {str(torch.__version__)!r}\nREASON = {reason!r}\n")

    def copy_extensions_to_source(self):
        super().copy_extensions_to_source()
        self.copy_file(self.record, f"seq2seq_fast/{self.record.name}")


extension = CppExtension(
    "seq2seq_fast._C",
    sorted([*glob("csrc/*.cpp"), *glob("csrc/cpu/*.cpp")]),
    include_dirs=["csrc"],
    depends=sorted(glob("csrc/**/*.h", recursive=True)),
    # no -march: the instruction set is chosen at run time. -Wno-: gcc 12 warns of its own AVX-512 headers.
    # CXXFLAGS last: `make sanitize` has the final word
    extra_compile_args=[
        *("-O3", "-g0", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"),
        "-Wno-maybe-uninitialized",
        *shlex.split(os.environ.get("CXXFLAGS", "")),
    ],
    extra_link_args=["-fopenmp"],
)
setup(
    packages=[
        "seq2seq_fast",
        *(
            f"seq2seq_fast.{name}"
            for name in ("benchmarks", "benchmarks.page", "benchmarks.peers", "functional", "kernels", "nn")
        ),
    ],
    package_data={"seq2seq_fast.benchmarks": ["bounds.json", "page/page.html", "page/page.css"]},
    ext_modules=[extension],
    cmdclass={"build_ext": Build},
)
