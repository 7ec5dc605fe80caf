"""Attention with what people put into it, against each of torch's ways to the same."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from seq2seq_fast import nn
from seq2seq_fast.functional import additive_attention, scaled_dot_product_attention

from .case import Case

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# batch, heads, queries, keys, width
SHAPES = ((32, 8, 20, 20, 32), (16, 8, 128, 128, 64), (4, 16, 1024, 1024, 64))
QUERY = (64, 8, 1, 4096, 64)  # its keys and values exceed the cache
BAHDANAU = (64, 1, 1, 50, 512)
BACKENDS = (
    SDPBackend.MATH,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
)
compiled_flex = torch.compile(flex_attention, dynamic=False)


def cases(device: str, dtypes=DTYPES, shapes=SHAPES, query=QUERY, bahdanau=BAHDANAU) -> Iterator[Case]:
    for dtype in dtypes:
        draw = partial(torch.randn, device=device, dtype=dtype)
        torch.manual_seed(0)
        for shape in shapes:
            yield from plain(draw, shape)
            yield from boolean_mask(draw, shape)
            yield from lengths(draw, shape)
            yield from bias(draw, shape)
            yield from weights(draw, shape)
        yield from one_query(draw, query)
        yield from additive(draw, bahdanau)


def drawn(draw, shape) -> tuple[list[Tensor], str]:
    batch, heads, queries, keys, width = shape
    return [draw(batch, heads, n, width) for n in (queries, keys, keys)], "x".join(map(str, shape))


def eager(query, key, value, mask=None):
    """As seq2seq code writes it."""
    scores = query @ key.mT / query.size(-1) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1) @ value


def with_backend(backend, *arguments):
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(*arguments)


def kernel(query, key, value):
    """Our kernel, which plain attention otherwise leaves to torch's."""
    scale = query.size(-1) ** -0.5
    return torch.ops.seq2seq_fast.attention(query, key, value, [], None, None, False, 0.0, scale, "none", "zeros")


def plain(draw, shape) -> Iterator[Case]:
    qkv, size = drawn(draw, shape)
    for backend in BACKENDS:
        theirs = partial(with_backend, backend)
        yield Case(f"plain {size}", f"SDPA {backend.name.lower()}", qkv, theirs, kernel, eager)


def boolean_mask(draw, shape) -> Iterator[Case]:
    qkv, size = drawn(draw, shape)
    batch, _, queries, keys, _ = shape
    mask = torch.rand(batch, 1, queries, keys, device=qkv[0].device) > 0.4
    mask[..., 0] = True

    def ours(*qkv):
        return scaled_dot_product_attention(*qkv, mask)

    for backend in BACKENDS:

        def theirs(*qkv, backend=backend):
            return with_backend(backend, *qkv, mask)

        yield Case(f"boolean mask {size}", f"SDPA {backend.name.lower()}", qkv, theirs, ours, partial(eager, mask=mask))


def lengths(draw, shape) -> Iterator[Case]:
    """Rows filled to 60 % on average."""
    qkv, size = drawn(draw, shape)
    batch, _, _, keys, _ = shape
    device = qkv[0].device
    held = torch.linspace(0.2, 1, batch, device=device).mul(keys).long().clamp(min=1)
    mask = (torch.arange(keys, device=device) < held[:, None])[:, None, None, :]

    def ours(*qkv):
        return scaled_dot_product_attention(*qkv, lengths=held)

    exact = partial(eager, mask=mask)
    for backend in BACKENDS:

        def theirs(*qkv, backend=backend):
            return with_backend(backend, *qkv, mask)

        yield Case(f"lengths, 60 % {size}", f"SDPA {backend.name.lower()}", qkv, theirs, ours, exact)
    if device.type == "cuda":
        blocks = create_block_mask(
            lambda b, h, q, k: k < held[b], batch, None, shape[2], keys, device=device, _compile=True
        )
        flex = partial(compiled_flex, block_mask=blocks)
        yield Case(f"lengths, 60 % {size}", "flex_attention, compiled", qkv, flex, ours, exact)


def bias(draw, shape) -> Iterator[Case]:
    """A bias for each head, the same for all rows of the batch, and its gradient."""
    qkv, size = drawn(draw, shape)
    _, heads, queries, keys, _ = shape
    inputs = [*qkv, draw(1, heads, queries, keys)]
    for backend in BACKENDS:
        theirs = partial(with_backend, backend)
        name = f"SDPA {backend.name.lower()}"
        yield Case(f"bias {size}", name, inputs, theirs, scaled_dot_product_attention, eager)


def weights(draw, shape) -> Iterator[Case]:
    """torch.nn.MultiheadAttention as it is called by default: with the weights, averaged over the heads."""
    batch, heads, queries, _, width = shape
    x = draw(batch, queries, heads * width)
    theirs = torch.nn.MultiheadAttention(heads * width, heads, batch_first=True).to(x)
    ours = nn.MultiheadAttention(heads * width, heads, batch_first=True).to(x)
    ours.load_state_dict(theirs.state_dict())
    exact = torch.nn.MultiheadAttention(heads * width, heads, batch_first=True).to(x.device, torch.float64)
    exact.load_state_dict(theirs.state_dict())
    runs = (lambda x, module=module: module(x, x, x) for module in (theirs, ours, exact))
    yield Case(f"average weights {'x'.join(map(str, shape))}", "torch.nn.MultiheadAttention", [x], *runs)


def one_query(draw, shape) -> Iterator[Case]:
    """A decoder's step."""
    qkv, size = drawn(draw, shape)
    moved = sum(x.numel() * x.element_size() for x in qkv)
    peers = {f"SDPA {backend.name.lower()}": partial(with_backend, backend) for backend in BACKENDS} | {"eager": eager}
    for name, theirs in peers.items():
        yield Case(f"one query {size}", name, qkv, theirs, kernel, eager, moved, ("inference",))


def additive(draw, shape) -> Iterator[Case]:
    """Bahdanau's score."""
    batch, _, queries, keys, width = shape
    inputs = [
        draw(batch, queries, width),
        draw(batch, keys, width),
        draw(width) * width**-0.5,
        draw(batch, keys, width),
    ]

    def written_out(query, key, score_weight, value):
        alphas = ((query.unsqueeze(2) + key.unsqueeze(1)).tanh() @ score_weight).softmax(-1)
        return alphas @ value, alphas

    name = f"additive {'x'.join(map(str, shape))}"
    yield Case(name, "eager", inputs, written_out, additive_attention, written_out)
