"""What serves tensors on CUDA, told without a GPU: registrations, and the modules' choices on fake tensors."""

import subprocess
import sys

import pytest
import torch
from torch._subclasses import FakeTensorMode

from seq2seq_fast import attention_ops, nn, reference_attention
from seq2seq_fast.functional.attention import attention_op

OPERATORS = [
    name + way
    for name in ("rnn_layer", "attention", "additive_attention")
    for way in ("", "_train", "_backward")
]  # fmt: skip

PROGRAM = f"""
import sys, torch
import seq2seq_fast.nn
for name in {OPERATORS}:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"seq2seq_fast::{{name}}", "CUDA"), name
assert not any(name.startswith("seq2seq_fast.kernels") for name in sys.modules)
"""

pytestmark = pytest.mark.needs_extension


def test_registered_without_the_kernels():
    process = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]


@pytest.fixture
def cuda():
    pytest.importorskip("triton")
    # a torch without CUDA makes no graph of such tensors
    with FakeTensorMode(), torch.no_grad(), torch.device("cuda"):
        yield


def on_cuda(make, *args, **kwargs):
    """A module of fake parameters: there is no filling them with values."""
    with torch.device("meta"):
        module = make(*args, **kwargs)
    for child in module.modules():
        for name, parameter in child._parameters.items():
            if parameter is not None:
                child._parameters[name] = torch.empty_like(parameter, device="cuda")
    return module


def operators_called(call) -> set[str]:
    class Called(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            names.add(op.name())
            return op(*args, **(kwargs or {}))

    names = set()
    with Called():
        call()
    return {name.removeprefix("seq2seq_fast::") for name in names if name.startswith("seq2seq_fast::")}


@pytest.mark.parametrize("cell", (nn.GRUCell, nn.LSTMCell, nn.RNNCell))
def test_cells_take_the_fused_step(cuda, cell):
    module = on_cuda(cell, 5, 7)
    assert module.why_not_fused(torch.empty(3, 5)) is None
    assert operators_called(lambda: module(torch.empty(3, 5))) == {"rnn_layer"}


@pytest.mark.parametrize("layer", (nn.GRU, nn.LSTM, nn.RNN))
def test_layers_are_cudnns_where_the_loop_is_not_built(cuda, layer):
    assert "cuDNN" in on_cuda(layer, 5, 7).why_not_fused(torch.empty(4, 3, 5))


@pytest.mark.parametrize("need_weights", (False, True))
@pytest.mark.parametrize("masked", (False, True))
def test_multihead_attention_leaves_only_the_plain_to_torch(cuda, masked, need_weights):
    module = on_cuda(nn.MultiheadAttention, 32, 4, batch_first=True)
    x = torch.empty(2, 6, 32)
    mask = torch.empty(2, 6, dtype=torch.bool) if masked else None
    why_not = module.why_not_fused(x, x, x, mask, need_weights)
    if masked or need_weights:
        assert why_not is None
    else:
        assert "plain attention" in why_not


@pytest.mark.parametrize("score, operator", (("additive", "additive_attention"), ("dot", "attention")))
def test_seq2seq_attention(cuda, score, operator):
    module = on_cuda(nn.Attention, 32, score=score)
    module.init_keys(torch.empty(2, 6, 32))
    assert operators_called(lambda: module(torch.empty(2, 1, 32))) == {operator}


@pytest.mark.parametrize("dtype, width, fused", ((torch.float16, 256, True), (torch.float32, 72, False)), ids=str)
def test_heads_that_fit_the_registers(cuda, dtype, width, fused):
    x = torch.empty(3, 2, 4, width, dtype=dtype)
    kernel, reference = attention_ops.attention, reference_attention.attention
    assert attention_op(x, x) is (kernel if fused else reference)
