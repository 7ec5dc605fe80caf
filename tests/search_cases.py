"""Random decoders for the tests of decoding, and the operators on them."""

import torch

from seq2seq_fast import search_ops  # noqa: F401  (defines the operators)
from seq2seq_fast.functional import Decoder, Memory
from seq2seq_fast.functional.search_inputs import decoder_arguments
from seq2seq_fast.reference_search import SCORES

OPS = torch.ops.seq2seq_fast
GATES = {"gru": 3, "lstm": 4, "rnn_tanh": 1, "rnn_relu": 1}


class Case:
    """A decoder with all it reads. `score` None: no attention; `ragged`: lengths and a mask; `fed_back`: vectors."""

    def __init__(
        self,
        cell="gru",
        *,
        layers=1,
        rows=3,
        hidden=8,
        vocabulary=11,
        embedding=5,
        context=0,
        bias=True,
        score=None,
        keys=6,
        width=None,
        value_width=7,
        ragged=False,
        fed_back=False,
        seed=0,
    ):
        torch.manual_seed(seed)
        self.fed_back = fed_back
        input = (vocabulary if fed_back else embedding) + context
        gates, query = GATES[cell] * hidden, width is not None
        width = width or hidden
        weights = []
        for layer in range(layers):
            # wide enough that tokens differ from step to step
            weights += [self._draw(gates, hidden if layer else input), self._draw(gates, hidden, scale=2)]
            weights += [self._draw(gates), self._draw(gates)] if bias else []
        read = hidden + (value_width if score else 0)
        self.decoder = Decoder(
            cell,
            weights,
            self._draw(vocabulary, read, scale=0.5 if fed_back else 8),
            self._draw(vocabulary) if bias else None,
            None if fed_back else torch.randn(vocabulary, embedding, dtype=torch.float64),
        )
        states = [torch.randn(layers, rows, hidden, dtype=torch.float64) for _ in range(2)]
        self.hx = tuple(states) if cell == "lstm" else states[0]
        self.context = torch.randn(rows, context, dtype=torch.float64) if context else None
        self.memory = None
        if score:
            assert score in SCORES
            self.memory = Memory(
                torch.randn(rows, keys, width, dtype=torch.float64) / 2,
                torch.randn(rows, keys, value_width, dtype=torch.float64),
                score,
                torch.randint(0, keys + 1, (rows,)) if ragged else None,
                torch.rand(rows, keys) < 0.8 if ragged else None,
                self._draw(width, hidden) if query else None,
                self._draw(width) if query and bias else None,
                self._draw(width) if score == "additive" else None,
            )
        self.start = (
            torch.randn(rows, vocabulary, dtype=torch.float64) if fed_back else torch.randint(vocabulary, (rows,))
        )

    @staticmethod
    def _draw(*shape, scale=1.0):
        return (torch.rand(shape, dtype=torch.float64) * 2 - 1) * scale * shape[-1] ** -0.5

    def arguments(self, dtype=torch.float64) -> tuple:
        """The operator's first arguments."""

        def cast(x):
            return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

        width = self.decoder.weight_out.size(0) if self.fed_back else self.decoder.embedding.size(1)
        given = [self.start, *([] if self.fed_back else [self.decoder.embedding])]
        given += decoder_arguments(self.decoder, self.hx, self.context, self.memory, width)
        return tuple([cast(y) for y in x] if isinstance(x, list) else cast(x) for x in given)

    def choice(
        self,
        max_steps=9,
        *,
        eos=0,
        pad=-7,
        beams=1,
        length_penalty=0.0,
        forced=None,
        uniforms=None,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
    ) -> tuple:
        """The operator's last arguments."""
        alphas = self.memory is not None and forced is None
        return max_steps, eos, pad, beams, length_penalty, forced, uniforms, temperature, top_k, top_p, alphas
