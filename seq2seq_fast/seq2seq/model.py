"""The whole: an encoder, a decoder, and what is between them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .. import functional
from ..functional import Found
from .attention_decoder import AttentionDecoder
from .checks import check_ends, check_lengths, check_tokens
from .decoder import Decoder
from .encoder import Encoder
from .loss import sequence_loss
from .teacher_forcing import Schedule, ratio_at


class Encoded(NamedTuple):
    """What a decoder starts from: its first state, and the context (B, C) of every step, or None."""

    hx: Tensor | tuple[Tensor, Tensor]
    context: Tensor | None


class Seq2Seq(torch.nn.Module):
    """An encoder-decoder: trains on (source, target), predicts by greedy search, beam search, sampling or feedback.

    A target is (y_1 .. y_n, eos, pad ..); the decoder's inputs are `bos` and the target but for its last step. Of
    vectors the first input is `start`, or else the last one of the source. Its `state_dict` is that of its modules,
    under `encoder.embedding`, `encoder.rnn`, `decoder.embedding`, `decoder.rnn`, `decoder.output` and so on.

    Args:
        encoder, decoder: the two halves.
        bridge: from each of the encoder's last states (L*D, B, H) to one the decoder starts with (L, B, H'), such as
            `SumDirections()`; None where they fit as they are.
        context: None: the context is in the first state alone. "last": the last state of the encoder's top layer, its
            directions side by side, is an input of every step as well. Or a callable (states (B, S, D*H), hx) to
            (B, C).
        bos, eos, pad: ids of tokens; with `eos` None all predictions have the same length.
        teacher_forcing: the ratio of steps, in training, whose input is the target and not the decoder's own
            prediction, or a schedule such as `linear(1.0, 0.5, steps=1000)`, a callable from the step. In eval mode
            all are targets.

    Raises:
        TypeError, ValueError: an argument of another kind or out of range, named in the message.
    """

    def __init__(
        self,
        encoder: Encoder,
        decoder: Decoder,
        bridge: torch.nn.Module | None = None,
        *,
        context: str | Callable | None = None,
        bos: int | None = None,
        eos: int | None = None,
        pad: int = 0,
        teacher_forcing: float | Schedule = 1.0,
    ):
        super().__init__()
        for name, module, kind in (("encoder", encoder, Encoder), ("decoder", decoder, Decoder)):
            if not isinstance(module, kind):
                raise TypeError(f"{name}: expected seq2seq_fast.seq2seq.{kind.__name__}, got {type(module).__name__}")
        if context is not None and context != "last" and not callable(context):
            raise ValueError(f"context: expected None, 'last' or a callable, got {context!r}")
        if decoder.of_tokens:
            if bos is None:
                raise ValueError("bos: expected the token that decoding starts from, got None")
            for name, token, count in (
                ("bos", bos, decoder.embedding.num_embeddings),
                ("eos", eos, decoder.output.out_features),
            ):
                if token is not None and not 0 <= token < count:
                    raise ValueError(f"{name}: expected a token from 0 to {count - 1}, got {token}")
        if not callable(teacher_forcing):
            ratio_at(teacher_forcing, 0)
        self.encoder, self.decoder, self.bridge, self.context = encoder, decoder, bridge, context
        self.bos, self.eos, self.pad, self.teacher_forcing = bos, eos, pad, teacher_forcing

    def encode(
        self, source: Tensor, source_lengths: Tensor | None = None, source_mask: Tensor | None = None
    ) -> Encoded:
        """Reads the sources, and shows them to the attention.

        Args:
            source: (B, S) tokens or (B, S, F) vectors.
            source_lengths: (B,) integers, 1 <= length <= S: the steps of each row that count.
            source_mask: (B, S) bool, True takes part in the attention.

        Raises:
            RuntimeError, ValueError, TypeError: a wrong rank, size, dtype or value, named in the message.
        """
        attends = isinstance(self.decoder, AttentionDecoder)
        if source_mask is not None:
            if not attends:
                raise ValueError("source_mask: expected a decoder with attention, which alone has a use for it")
            if source_mask.dtype != torch.bool or source_mask.shape != source.shape[:2]:
                raise RuntimeError(
                    f"source_mask: expected bool {tuple(source.shape[:2])}, got {source_mask.dtype} "
                    f"{tuple(source_mask.shape)}"
                )
        states, hx = self.encoder(source, source_lengths)
        if attends:
            self.decoder.attend(states, mask=source_mask, lengths=source_lengths)
        context = self.context
        if context == "last":
            top = (hx[0] if isinstance(hx, tuple) else hx)[-2 if self.encoder.rnn.bidirectional else -1 :]
            context = top.transpose(0, 1).flatten(1)
        elif context is not None:
            context = context(states, hx)
        if self.bridge is not None:
            hx = tuple(map(self.bridge, hx)) if isinstance(hx, tuple) else self.bridge(hx)
        self._check_fit(hx, context)
        return Encoded(hx, context)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_lengths: Tensor | None = None,
        source_mask: Tensor | None = None,
        target_lengths: Tensor | None = None,
        start: Tensor | None = None,
        step: int = 0,
    ) -> Tensor:
        """What the decoder says at each step of the target: (B, T, V) logits or (B, T, F) vectors.

        Args:
            source, source_lengths, source_mask: as for `encode`.
            target: (B, T) tokens or (B, T, F) vectors.
            target_lengths: (B,) integers, 0 <= length <= T: where each row's `eos` is at the latest.
            start: (B, F), the first input of vectors.
            step: of the schedule of teacher forcing.

        Raises:
            RuntimeError, ValueError, TypeError: a wrong rank, size, dtype or value, named in the message.
        """
        tokens = self.decoder.of_tokens
        if target.dim() != (2 if tokens else 3) or target.size(0) != source.size(0) or not target.size(1):
            shape = f"({source.size(0)}, T{'' if tokens else ', F'})"
            raise RuntimeError(f"target: expected {shape} with T of 1 or more, got {tuple(target.shape)}")
        if target_lengths is not None:
            target_lengths = check_lengths("target_lengths", target_lengths, *target.shape[:2], least=0)
        if tokens:
            check_tokens("target", target, self.decoder.output.out_features)
            if self.eos is not None:
                check_ends(target, target_lengths, self.eos)
        teacher_forcing = ratio_at(self.teacher_forcing, step) if self.training else 1.0
        first = self._start(source, source_lengths, start)
        encoded = self.encode(source, source_lengths, source_mask)
        inputs = torch.cat([first.unsqueeze(1), target[:, :-1]], 1)
        return self.decoder(inputs, encoded.hx, context=encoded.context, teacher_forcing=teacher_forcing)

    def loss(self, source: Tensor, target: Tensor, *, target_lengths: Tensor | None = None, **given) -> Tensor:
        """`sequence_loss` of what `forward`, given the same, says: the mean over the steps that are no padding."""
        outputs = self(source, target, target_lengths=target_lengths, **given)
        pad = self.pad if self.decoder.of_tokens and self.eos is not None else None
        return sequence_loss(outputs, target, target_lengths, pad=pad)

    @torch.no_grad()
    def greedy(
        self,
        source: Tensor,
        max_steps: int,
        *,
        source_lengths: Tensor | None = None,
        source_mask: Tensor | None = None,
        return_alphas: bool = False,
    ) -> Found:
        """functional.greedy_search from the encoded sources."""
        decoder = self._decoder_of_tokens("greedy")
        hx, context = self.encode(source, source_lengths, source_mask)
        if isinstance(decoder, AttentionDecoder) and not decoder.has_one_head:
            return self._greedy_by_steps(hx, context, source.size(0), max_steps, return_alphas)
        return functional.greedy_search(
            decoder.parameters_of_search(), self.bos, hx, max_steps, eos=self.eos, pad=self.pad, context=context,
            memory=decoder.memory(), return_alphas=return_alphas,
        )  # fmt: skip

    @torch.no_grad()
    def beam(
        self,
        source: Tensor,
        max_steps: int,
        beams: int,
        *,
        length_penalty: float = 0.0,
        source_lengths: Tensor | None = None,
        source_mask: Tensor | None = None,
        return_alphas: bool = False,
    ) -> Found:
        """functional.beam_search from the encoded sources."""
        decoder = self._decoder_of_tokens("beam")
        self._check_one_head("beam")
        if not 1 <= beams <= decoder.output.out_features:
            raise ValueError(f"beams: expected 1 to {decoder.output.out_features}, the vocabulary, got {beams}")
        hx, context = self.encode(source, source_lengths, source_mask)
        return functional.beam_search(
            decoder.parameters_of_search(), self.bos, hx, max_steps, beams, length_penalty=length_penalty,
            eos=self.eos, pad=self.pad, context=context, memory=decoder.memory(), return_alphas=return_alphas,
        )  # fmt: skip

    @torch.no_grad()
    def sample(
        self,
        source: Tensor,
        max_steps: int,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        generator: torch.Generator | None = None,
        source_lengths: Tensor | None = None,
        source_mask: Tensor | None = None,
        return_alphas: bool = False,
    ) -> Found:
        """functional.sample from the encoded sources."""
        decoder = self._decoder_of_tokens("sample")
        self._check_one_head("sample")
        hx, context = self.encode(source, source_lengths, source_mask)
        return functional.sample(
            decoder.parameters_of_search(), self.bos, hx, max_steps, temperature=temperature, top_k=top_k, top_p=top_p,
            generator=generator, eos=self.eos, pad=self.pad, context=context, memory=decoder.memory(),
            return_alphas=return_alphas,
        )  # fmt: skip

    @torch.no_grad()
    def feedback(
        self,
        source: Tensor,
        steps: int,
        *,
        start: Tensor | None = None,
        source_lengths: Tensor | None = None,
        source_mask: Tensor | None = None,
        return_alphas: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The vectors (B, T, F) of `steps` steps, each fed back, and the weights of attention (B, T, S) or None."""
        decoder = self.decoder
        if decoder.of_tokens:
            raise ValueError("feedback: expected a decoder of vectors; greedy, beam and sample are for tokens")
        if steps < 1:
            raise ValueError(f"steps: expected 1 or more, got {steps}")
        attends = isinstance(decoder, AttentionDecoder)
        if return_alphas and not attends:
            raise ValueError("return_alphas: expected a decoder with attention")
        first = self._start(source, source_lengths, start)
        hx, context = self.encode(source, source_lengths, source_mask)
        if decoder.embedding is None and (not attends or decoder.has_one_head):
            return functional.feedback(
                decoder.parameters_of_search(), first, hx, steps, context=context, memory=decoder.memory(),
                return_alphas=return_alphas,
            )  # fmt: skip
        inputs = first.unsqueeze(1).expand(-1, steps, -1)
        outputs = self._in_eval_mode(decoder, inputs, hx, context)
        return outputs, decoder.attention.alphas if return_alphas else None

    def _greedy_by_steps(self, hx, context, batch: int, max_steps: int, return_alphas: bool) -> Found:
        """Greedy search for attention with many heads, which the search operator does not have."""
        decoder = self.decoder
        inputs = torch.full((batch, max_steps), self.bos, device=decoder.output.weight.device)
        scores, tokens = self._in_eval_mode(decoder, inputs, hx, context).log_softmax(-1).max(-1)
        lengths = torch.full((batch,), max_steps, device=tokens.device)
        runs = torch.ones_like(tokens, dtype=torch.bool)
        if self.eos is not None:
            runs = ((tokens == self.eos).cumsum(1) - (tokens == self.eos).long()) == 0
            lengths = runs.sum(1)
        alphas = None
        if return_alphas:
            alphas = decoder.attention.alphas * runs.view(batch, *([1] * (decoder.attention.alphas.dim() - 3)), -1, 1)
        return Found(tokens.where(runs, self.pad), lengths, (scores * runs).sum(1), alphas)

    @staticmethod
    def _in_eval_mode(decoder: Decoder, inputs: Tensor, hx, context) -> Tensor:
        training = decoder.training
        decoder.eval()
        try:
            return decoder(inputs, hx, context=context, teacher_forcing=0.0)
        finally:
            decoder.train(training)

    def _start(self, source: Tensor, source_lengths: Tensor | None, start: Tensor | None) -> Tensor:
        """The decoder's first input: (B) tokens or (B, F) vectors."""
        batch = source.size(0)
        if self.decoder.of_tokens:
            if start is not None:
                raise ValueError("start: expected None, since tokens start from bos")
            return torch.full((batch,), self.bos, device=source.device)
        width = self.decoder.output.out_features
        if start is None:
            if source.dim() != 3 or source.size(2) != width:
                raise ValueError(f"start: expected ({batch}, {width}), since the source has no such vectors, got None")
            if source_lengths is None:
                return source[:, -1]
            last = torch.as_tensor(source_lengths, device=source.device).long() - 1
            return source[torch.arange(batch, device=source.device), last.clamp(0)]
        if start.shape != (batch, width):
            raise RuntimeError(f"start: expected ({batch}, {width}), got {tuple(start.shape)}")
        return start

    def _check_fit(self, hx, context: Tensor | None) -> None:
        rnn = self.decoder.rnn
        if isinstance(hx, tuple) != (rnn.mode == "LSTM"):
            raise ValueError(f"encoder: expected {'an LSTM' if rnn.mode == 'LSTM' else 'no LSTM'} like the decoder")
        h_0 = hx[0] if isinstance(hx, tuple) else hx
        expected = (rnn.num_layers, h_0.size(1), rnn.hidden_size)
        if h_0.shape != expected:
            raise ValueError(
                f"bridge: expected the encoder's state as {expected} for the decoder, got {tuple(h_0.shape)}; "
                "SumDirections, ConcatDirections and Projection are bridges"
            )
        if context is not None and context.dim() != 2:
            raise ValueError(f"context: expected (B, C), got {tuple(context.shape)}")

    def _decoder_of_tokens(self, name: str) -> Decoder:
        if not self.decoder.of_tokens:
            raise ValueError(f"{name}: expected a decoder of tokens; feedback is for vectors")
        return self.decoder

    def _check_one_head(self, name: str) -> None:
        if isinstance(self.decoder, AttentionDecoder) and not self.decoder.has_one_head:
            heads = self.decoder.attention.num_heads
            raise ValueError(f"{name}: expected attention with one head, got num_heads={heads}; greedy takes it")
