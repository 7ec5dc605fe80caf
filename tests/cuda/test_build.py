"""The library that setup.py links: it loads with no GPU, answers what needs none, and says what is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from resources import nvcc

from seq2seq_fast.cuda import forms, loop

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(nvcc() is None, reason="nvcc is not installed")


def build_cuda(library: Path, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_cuda", "--library", library],
        cwd=ROOT, env=os.environ | {"SEQ2SEQ_FAST_BUILD": "cuda"} | environment, capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("cuda") / "_loop.so"
    process = build_cuda(path, TORCH_CUDA_ARCH_LIST="8.0")
    assert process.returncode == 0, process.stderr[-2000:]
    return loop.Library(path)


def test_plans_with_no_gpu(library):
    layer = forms.Layer("gru", torch.bfloat16, 512, 32, 2, False, True, torch.device("cuda", 0))
    h200 = loop.Limits(132, 232448, 16, 0)
    status, plan = library.plan(forms.sizes_of(layer, 0), "grid", False, h200)
    assert status == "ok"
    assert plan.blocks * plan.units >= 512
    assert 2 * plan.groups * plan.blocks <= 132


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_call_without_a_gpu_says_what_cuda_says(library):
    assert library.limits(torch.device("cuda", 0)) is None
    layer = forms.Layer("gru", torch.bfloat16, 512, 32, 1, False, False, torch.device("cuda", 0))
    call = forms.sizes_of(layer, 0)
    call.steps = 0
    for name in ("weight_hh", "h_n"):
        setattr(call.direction[0], name, 256)
    library.stream = lambda device: None
    with pytest.raises(RuntimeError, match=r"the grid form .* forward: gru, torch.bfloat16, hidden_size=512, .*CUDA"):
        library.run(call, "grid", False, torch.device("cuda", 0))


def test_an_architecture_that_is_none_is_named(tmp_path):
    process = build_cuda(tmp_path / "_loop.so", TORCH_CUDA_ARCH_LIST="hopper")
    assert process.returncode != 0
    assert "TORCH_CUDA_ARCH_LIST: expected names such as 9.0 or 9.0+PTX, got 'hopper'" in process.stderr
