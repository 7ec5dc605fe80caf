"""Builds the C++ extension where there is a compiler and the CUDA kernels where there is nvcc. SEQ2SEQ_FAST_BUILD says:

auto  build what can be built; where that fails, install without it and keep the reason for `python -m seq2seq_fast`
none  leave both out
cpu   build the extension or fail, and leave the CUDA kernels out
cuda  build both or fail

The CUDA kernels are compiled for TORCH_CUDA_ARCH_LIST, else for the GPUs that are present, else for sm_80, sm_90 and
sm_100; where torch itself has no CUDA, for sm_90 alone, to check them. `python setup.py build_cuda` compiles them
alone. The torch that will run must be installed already: pip install --no-build-isolation.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from glob import glob
from pathlib import Path

import torch
from setuptools import Command, setup
from setuptools.errors import CompileError, LinkError
from torch.utils.cpp_extension import BuildExtension, CppExtension, get_cxx_compiler

mode = os.environ.get("SEQ2SEQ_FAST_BUILD", "auto")
if mode not in ("auto", "none", "cpu", "cuda"):
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


NVCC = shutil.which("nvcc", path=f"{os.environ['PATH']}:{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin")


def architectures() -> list[str]:
    """What to compile the CUDA kernels for; none where no GPU that is present can run them."""
    if listed := os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return re.split(r"[;, ]+", listed.strip())
    if torch.cuda.is_available():
        present = {torch.cuda.get_device_capability(k) for k in range(torch.cuda.device_count())}
        return ["{}.{}".format(*capability) for capability in sorted(present) if capability >= (8, 0)]
    return ["8.0", "9.0", "10.0"] if torch.version.cuda else ["9.0"]


def generate_code(name: str) -> str:
    """nvcc's options for one architecture."""
    found = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", name)
    if not found:
        raise CompileError(f"TORCH_CUDA_ARCH_LIST: expected names such as 9.0 or 9.0+PTX, got {name!r}")
    number = "".join(found.group(1, 2, 3))
    machine_code = f"-gencode=arch=compute_{number},code=sm_{number}"
    return machine_code + (f" -gencode=arch=compute_{number},code=compute_{number}" if found[4] else "")


def build_cuda(folder: Path, library: Path) -> str | None:
    """Compiles csrc/cuda into `library`, with no torch in it. Why it could not be, in one sentence, or None."""
    library.unlink(missing_ok=True)
    if mode in ("none", "cpu"):
        return f"SEQ2SEQ_FAST_BUILD={mode} left them out"
    if NVCC is None:
        return "there is no nvcc; install the CUDA toolkit and reinstall"
    if not (names := architectures()):
        return "they need a GPU of compute capability 8.0 or later"
    folder.mkdir(parents=True, exist_ok=True)
    library.parent.mkdir(parents=True, exist_ok=True)
    sources = sorted(Path("csrc/cuda").resolve().glob("*.cu"))
    objects = " ".join(f"{source.stem}.o" for source in sources)
    options = "-std=c++17 -O3 --expt-relaxed-constexpr -diag-suppress=1675 -Xcompiler=-fPIC"
    compile = " ".join([NVCC, options, *map(generate_code, names)])
    Path(folder, "build.ninja").write_text(
        f"rule nvcc\n  command = {compile} -MD -MF $out.d -c $in -o $out\n  depfile = $out.d\n  deps = gcc\n"
        f"rule link\n  command = {NVCC} -shared $in -o $out\n"
        + "".join(f"build {source.stem}.o: nvcc {source}\n" for source in sources)
        + f"build {library.resolve()}: link {objects}\n"
    )
    jobs = ["-j", os.environ["MAX_JOBS"]] if "MAX_JOBS" in os.environ else []
    if subprocess.run(["ninja", "-C", folder, *jobs], stdout=sys.stderr).returncode:
        return "csrc/cuda does not compile; `SEQ2SEQ_FAST_BUILD=cuda pip install -v` shows why"
    return None


class BuildCuda(Command):
    """Builds the CUDA kernels alone."""

    user_options = [("library=", None, "the file to build")]  # noqa: RUF012 - setuptools wants a list

    def initialize_options(self):
        self.library = "build/cuda/_loop.so"

    def finalize_options(self):
        self.library = Path(self.library)

    def run(self):
        if reason := build_cuda(Path("build/cuda"), self.library):
            raise CompileError(f"the CUDA kernels: {reason}")


class Build(BuildExtension):
    """Builds seq2seq_fast._C and seq2seq_fast/cuda/_loop.so, and _build.py: with which torch, or why not."""

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
            if mode in ("cpu", "cuda"):
                raise CompileError(f"SEQ2SEQ_FAST_BUILD={mode}: {reason}")
            extension.optional = True
            print(f"seq2seq_fast: the C++ extension is not built: {reason}", file=sys.stderr)
        self.loop = built.with_name("cuda") / "_loop.so"
        why_no_cuda = build_cuda(Path(self.build_temp, "cuda").resolve(), self.loop)
        if why_no_cuda is not None and mode == "cuda":
            raise CompileError(f"SEQ2SEQ_FAST_BUILD=cuda: {why_no_cuda}")
        self.record = built.with_name("_build.py")
        self.record.parent.mkdir(parents=True, exist_ok=True)
        self.record.write_text(
            f"TORCH = {str(torch.__version__)!r}\nREASON = {reason!r}\nCUDA_REASON = {why_no_cuda!r}\n"
        )

    def copy_extensions_to_source(self):
        super().copy_extensions_to_source()
        self.copy_file(self.record, f"seq2seq_fast/{self.record.name}")
        if self.loop.exists():
            self.copy_file(self.loop, f"seq2seq_fast/cuda/{self.loop.name}")
        else:
            Path("seq2seq_fast/cuda", self.loop.name).unlink(missing_ok=True)


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
            for name in (
                "benchmarks",
                "benchmarks.page",
                "benchmarks.peers",
                "cuda",
                "functional",
                "kernels",
                "nn",
                "seq2seq",
            )
        ),
    ],
    package_data={"seq2seq_fast.benchmarks": ["bounds.json", "page/page.html", "page/page.css"]},
    ext_modules=[extension],
    cmdclass={"build_ext": Build, "build_cuda": BuildCuda},
)
