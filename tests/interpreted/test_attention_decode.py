"""A few queries over many keys: split, packed and combined, against the oracle in float64."""

import pytest
import torch

from seq2seq_fast import reference_attention

pytest.importorskip("triton", reason="triton is not installed: pip install triton")
from test_attention_additive import DTYPES, assert_as_accurate, leaves

from seq2seq_fast.kernels import attention_decode, attention_forward

# batch, heads, key heads, queries, keys, width, value width
SHAPES = [(2, 1, 1, 1, 1100, 40, 33), (1, 4, 2, 8, 1025, 16, 16), (2, 6, 2, 3, 63, 7, 40)]


def draw(shape, dtype, masks, ragged):
    batch, heads, kv_heads, queries, keys, width, value_width = shape
    query = torch.randn(batch, queries, heads, width).to(dtype).transpose(1, 2)
    key, value = (torch.randn(batch, kv_heads, keys, w).to(dtype) for w in (width, value_width))
    drawn = []
    if "b" in masks:
        drawn.append(torch.rand(1, heads, queries, keys) > 0.1)
    if "f" in masks:
        drawn.append(torch.randn(batch, 1, queries, keys).masked_fill(torch.rand(keys) < 0.1, -torch.inf).to(dtype))
    return [query, key, value], drawn, torch.randint(0, 2, (batch,)) * torch.tensor(keys - 9) if ragged else None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("masks", "ragged", "causal", "dropout", "weights", "empty_rows"),
    [
        ("", False, False, 0.0, "none", "zeros"),
        ("bf", True, False, 0.0, "average", "nan"),
        ("f", True, True, 0.0, "heads", "zeros"),
        ("b", False, False, 0.3, "heads", "zeros"),
    ],
)
def test_decode(dtype, shape, masks, ragged, causal, dropout, weights, empty_rows):
    torch.manual_seed(1)
    tensors, drawn, lengths = draw(shape, dtype, masks, ragged)
    seed = torch.randint(-(2**62), 2**62, (1,)) if dropout else None
    rest = (lengths, seed, causal, dropout, shape[5] ** -0.5, weights, empty_rows)
    theirs = reference_attention.attention(*tensors, drawn, *rest)
    exact = leaves([*tensors, *drawn], torch.float64)
    wanted = reference_attention.attention(*exact[:3], exact[3:], *rest)
    if ragged:  # what lies after a row's end is not read
        for row, length in enumerate(lengths):
            tensors[1][row, :, length:] = tensors[2][row, :, length:] = torch.nan
    arguments = attention_forward.Arguments(*tensors, drawn, *rest[:5], empty_rows)
    assert attention_decode.decode_splits(arguments) == (4 if shape[4] > 512 else 1)
    *outputs, _ = attention_forward.attention_train(*tensors, drawn, *rest)
    for name, *results in zip(("output", "weights"), outputs, theirs, wanted, strict=False):
        assert_as_accurate(*results, 2, name)


@pytest.mark.parametrize(
    ("programs", "keys", "splits"), [(1, 512, 1), (1, 1024, 4), (211, 4096, 5), (212, 4096, 1), (40, 10**6, 6)]
)
def test_split_count(programs, keys, splits):
    assert attention_decode.split_count(programs, keys, 132) == splits
