"""Decoding with an encoder-decoder's second half: greedy search, beam search, sampling, and real-valued feedback.

The whole loop is one operator: no Python between the steps. It is for prediction and has no gradient.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .. import search_ops  # noqa: F401  (defines the operators)
from .recurrent import why_not_fused
from .search_inputs import Decoder, Memory, decoder_arguments, embedding_width, first_tokens

FUSED_DTYPES = (torch.float32, torch.float64)


class Found(NamedTuple):
    """What a search found, for B rows or, of a beam search, for B rows of K hypotheses, the best first.

    Attributes:
        tokens: (B, T) or (B, K, T) int64, `pad` after the end; T is `max_steps`.
        lengths: (B) or (B, K) int64, of the tokens up to the end, with the `eos`.
        scores: (B) or (B, K): the sums of the log-probabilities, of a beam search divided by the length penalty.
        alphas: (B, T, S) or (B, K, T, S), the weights of attention, zero after the end; None where not asked for.
    """

    tokens: Tensor
    lengths: Tensor
    scores: Tensor
    alphas: Tensor | None


def greedy_search(
    decoder: Decoder,
    start: int | Tensor,
    hx: Tensor | tuple[Tensor, Tensor],
    max_steps: int,
    *,
    eos: int | None = None,
    pad: int = 0,
    context: Tensor | None = None,
    memory: Memory | None = None,
    return_alphas: bool = False,
    forced: Tensor | None = None,
) -> Found:
    """Feeds back the likeliest token, of equal ones the lower, until every row has ended.

    Args:
        start: the first input, one token for all rows or (B) int64.
        hx: h_0 (L, B, H), for the LSTM (h_0, c_0).
        max_steps: T, the most tokens a row gets.
        eos: the token that ends a row; None: all rows have T tokens.
        pad: what stands after the end.
        context: (B, C), appended to the input of every step.
        memory: what the decoder attends to; None: no attention.
        return_alphas: whether to keep the weights of attention.
        forced: (B, T) int64: where not negative, the token of that step, which adds nothing to the score; not together
            with return_alphas.

    Raises:
        RuntimeError, ValueError, TypeError: an argument of a wrong rank, size, dtype or value, named in the message.
    """
    return _without_beams(
        _search(decoder, start, hx, max_steps, eos, pad, context, memory, return_alphas, forced=forced)
    )


def beam_search(
    decoder: Decoder,
    start: int | Tensor,
    hx: Tensor | tuple[Tensor, Tensor],
    max_steps: int,
    beams: int,
    *,
    length_penalty: float = 0.0,
    eos: int | None = None,
    pad: int = 0,
    context: Tensor | None = None,
    memory: Memory | None = None,
    return_alphas: bool = False,
) -> Found:
    """Keeps the K best hypotheses of each row, and returns them, the best first.

    At every step each hypothesis that runs has V continuations, and one that has ended has itself; of all these the
    best K stay, of equal ones those of the better hypothesis, then the lower token. The score that ranks them is the
    sum of the log-probabilities divided by ((5 + length) / 6) ** length_penalty, with the `eos` in the length (Wu et
    al., arXiv 1609.08144, equation 14). A row is done when its K hypotheses have all ended; those that run after
    `max_steps` count as they are.

    Args:
        beams: K, from 1 to V. With 1, the tokens are those of `greedy_search`.
        length_penalty: 0 or more; more favours longer hypotheses.
        decoder, start, hx, max_steps, eos, pad, context, memory, return_alphas: as for `greedy_search`.

    Raises:
        RuntimeError, ValueError, TypeError: an argument of a wrong rank, size, dtype or value, named in the message.
    """
    vocabulary = decoder.weight_out.size(0)
    if not 1 <= beams <= vocabulary:
        raise ValueError(f"beams: expected 1 to {vocabulary}, the vocabulary, got {beams}")
    if not 0 <= length_penalty < float("inf"):
        raise ValueError(f"length_penalty: expected 0 or more, got {length_penalty}")
    return _search(
        decoder,
        start,
        hx,
        max_steps,
        eos,
        pad,
        context,
        memory,
        return_alphas,
        beams=beams,
        length_penalty=length_penalty,
    )


def sample(
    decoder: Decoder,
    start: int | Tensor,
    hx: Tensor | tuple[Tensor, Tensor],
    max_steps: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
    eos: int | None = None,
    pad: int = 0,
    context: Tensor | None = None,
    memory: Memory | None = None,
    return_alphas: bool = False,
) -> Found:
    """Feeds back a token drawn from softmax(logits / temperature), until every row has ended.

    The numbers are drawn ahead, (T, B) from torch's generator, so that `torch.manual_seed` fixes the result.

    Args:
        temperature: more than 0.
        top_k: draws from the k likeliest tokens only; 0: from all.
        top_p: draws from the fewest likeliest of them that together have at least this share, more than 0, at most 1.
        generator: torch's default one where None.
        decoder, start, hx, max_steps, eos, pad, context, memory, return_alphas: as for `greedy_search`.

    Returns:
        `scores` are those of the model: before temperature, top_k and top_p.

    Raises:
        RuntimeError, ValueError, TypeError: an argument of a wrong rank, size, dtype or value, named in the message.
    """
    vocabulary = decoder.weight_out.size(0)
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature: expected more than 0, got {temperature}; greedy_search is its limit at 0")
    if not 0 <= top_k <= vocabulary:
        raise ValueError(f"top_k: expected 0 to {vocabulary}, the vocabulary, got {top_k}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p: expected more than 0 and at most 1, got {top_p}")
    return _without_beams(
        _search(
            decoder,
            start,
            hx,
            max_steps,
            eos,
            pad,
            context,
            memory,
            return_alphas,
            draws=True,
            generator=generator,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
        )
    )


@torch.no_grad()
def feedback(
    decoder: Decoder,
    start: Tensor,
    hx: Tensor | tuple[Tensor, Tensor],
    steps: int,
    *,
    context: Tensor | None = None,
    memory: Memory | None = None,
    return_alphas: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Feeds back the output vector itself, for T steps: real-valued sequences.

    Args:
        decoder: with `embedding` None and `weight_out` (F, ...).
        start: (B, F): the first input.
        hx, context, memory, return_alphas: as for `greedy_search`.

    Returns:
        outputs (B, T, F), and the weights of attention (B, T, S) or None.

    Raises:
        RuntimeError, ValueError, TypeError: an argument of a wrong rank, size, dtype or value, named in the message.
    """
    if decoder.embedding is not None:
        raise ValueError("embedding: expected None, since vectors are fed back; greedy_search takes tokens")
    _check_count("steps", steps)
    _check_alphas(return_alphas, memory)
    width = decoder.weight_out.size(0)
    arguments = decoder_arguments(decoder, hx, context, memory, width)
    h_0 = arguments[1]
    if start.shape != (h_0.size(1), width) or start.dtype != h_0.dtype or start.device != h_0.device:
        raise RuntimeError(
            f"start: expected {h_0.dtype} {(h_0.size(1), width)} on {h_0.device}, got {start.dtype} "
            f"{tuple(start.shape)} on {start.device}"
        )
    outputs, *alphas = _operator("feedback", h_0)(start, *arguments, steps, return_alphas)
    return outputs, alphas[0] if alphas else None


@torch.no_grad()
def _search(
    decoder: Decoder,
    start: int | Tensor,
    hx: Tensor | tuple[Tensor, Tensor],
    max_steps: int,
    eos: int | None,
    pad: int,
    context: Tensor | None,
    memory: Memory | None,
    return_alphas: bool,
    *,
    beams: int = 1,
    length_penalty: float = 0.0,
    forced: Tensor | None = None,
    draws: bool = False,
    generator: torch.Generator | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Found:
    _check_count("max_steps", max_steps)
    _check_alphas(return_alphas, memory)
    vocabulary = decoder.weight_out.size(0)
    if eos is not None and not 0 <= eos < vocabulary:
        raise ValueError(f"eos: expected a token from 0 to {vocabulary - 1}, or None, got {eos}")
    arguments = decoder_arguments(decoder, hx, context, memory, embedding_width(decoder))
    h_0 = arguments[1]
    tokens = first_tokens(start, decoder.embedding, h_0)
    if forced is not None:
        shape = (h_0.size(1), max_steps)
        if return_alphas:
            raise ValueError("forced: expected None where return_alphas is set")
        if forced.shape != shape or forced.dtype != torch.int64 or forced.device != h_0.device:
            raise RuntimeError(
                f"forced: expected int64 {shape} on {h_0.device}, got {forced.dtype} {tuple(forced.shape)} on "
                f"{forced.device}"
            )
        forced = forced.t()
    uniforms = None
    if draws:
        shape = (max_steps, h_0.size(1))
        uniforms = torch.rand(shape, generator=generator, dtype=torch.float64, device=h_0.device)
    results = _operator("search", h_0)(
        tokens,
        decoder.embedding,
        *arguments,
        max_steps,
        eos,
        pad,
        beams,
        length_penalty,
        forced,
        uniforms,
        temperature,
        top_k,
        top_p,
        return_alphas,
    )
    return Found(*results) if return_alphas else Found(*results, None)


def _operator(name: str, h_0: Tensor):
    """The whole loop as one operator where there is a kernel; else plain torch operations, step by step."""
    fused = h_0.is_cpu and h_0.dtype in FUSED_DTYPES and why_not_fused(h_0) is None
    return getattr(torch.ops.seq2seq_fast, name if fused else f"{name}_composite").default


def _without_beams(found: Found) -> Found:
    return Found(*(None if x is None else x.squeeze(1) for x in found))


def _check_count(name: str, count: int) -> None:
    if count < 1:
        raise ValueError(f"{name}: expected 1 or more, got {count}")


def _check_alphas(return_alphas: bool, memory: Memory | None) -> None:
    if return_alphas and memory is None:
        raise ValueError("return_alphas: expected a memory to attend to, got memory=None")
