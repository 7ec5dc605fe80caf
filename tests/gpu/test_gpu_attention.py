"""The attention operators on CUDA against the reference in float64, as accurate as torch there."""

import pytest
import torch
from error_rule import error

from seq2seq_fast import attention_ops, reference_attention  # noqa: F401 - the first registers them

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(2, 2, 1, 1, 63, 64), (2, 8, 4, 1, 2048, 64), (2, 4, 2, 40, 113, 40), (1, 8, 8, 257, 257, 64)],
    ids=lambda shape: str(shape),
)
def test_attention(dtype, shape, causal, lengths):
    batch, heads, kv_heads, queries, keys, width = shape
    if dtype == torch.float64:
        pytest.skip("the kernels take float16, bfloat16 and float32")
    torch.manual_seed(0)
    qkv = [torch.randn(batch, h, n, width).to("cuda", dtype) for h, n in ((heads, queries), *[(kv_heads, keys)] * 2)]
    held = torch.randint(1, keys + 1, (batch,), device="cuda") if lengths else None
    rest = ([], held, None, causal, 0.0, width**-0.5, "none", "zeros")
    d_output = torch.randint(-8, 9, (batch, heads, queries, width), device="cuda") / 8

    def run(call, in_dtype):
        leaves = [x.to(in_dtype).requires_grad_() for x in qkv]
        (output,) = call(*leaves, *rest)
        return [output.detach(), *torch.autograd.grad(output, leaves, d_output.to(in_dtype))]

    check(run, torch.ops.seq2seq_fast.attention, reference_attention.attention, dtype)


@pytest.mark.parametrize("mask_shape", [(2, 4, 40, 113), (1, 4, 40, 113), (2, 1, 1, 113)], ids=str)
def test_mask_gradient(dtype, mask_shape):
    if dtype == torch.float64:
        pytest.skip("the kernels take float16, bfloat16 and float32")
    torch.manual_seed(0)
    inputs = [torch.randn(s, device="cuda").to(dtype) for s in ((2, 4, 40, 64), *[(2, 4, 113, 64)] * 2, mask_shape)]
    d_output = torch.randint(-8, 9, (2, 4, 40, 64), device="cuda") / 8

    def run(call, in_dtype):
        leaves = [x.to(in_dtype).requires_grad_() for x in inputs]
        (output,) = call(*leaves[:3], leaves[3:], None, None, False, 0.0, 0.125, "none", "zeros")
        return [output.detach(), *torch.autograd.grad(output, leaves, d_output.to(in_dtype))]

    check(run, torch.ops.seq2seq_fast.attention, reference_attention.attention, dtype)


@pytest.mark.parametrize("queries", [1, 7])
def test_additive(dtype, queries):
    torch.manual_seed(0)
    shapes = ((3, queries, 63), (3, 113, 63), (63,), (3, 113, 40))
    inputs = [torch.randn(s, device="cuda").to(dtype) for s in shapes]
    lengths = torch.tensor([113, 1, 50], device="cuda")
    d_output = torch.randint(-8, 9, (3, queries, 40), device="cuda") / 8

    def run(call, in_dtype):
        leaves = [x.to(in_dtype).requires_grad_() for x in inputs]
        output, weights = call(*leaves, [], lengths, "zeros")
        return [output.detach(), weights.detach(), *torch.autograd.grad(output, leaves, d_output.to(in_dtype))]

    check(run, torch.ops.seq2seq_fast.additive_attention, reference_attention.additive_attention, dtype)


def check(run, kernel, reference, dtype):
    ours = run(kernel, dtype)
    theirs, exact = (run(reference, d) for d in (dtype, torch.float64))
    for k, (mine, torchs, wanted) in enumerate(zip(ours, theirs, exact, strict=True)):
        floor = 8 * torch.finfo(dtype).eps * wanted.abs().max().item()
        assert error(mine, wanted) <= (3 if k else 2) * error(torchs, wanted) + floor, k
