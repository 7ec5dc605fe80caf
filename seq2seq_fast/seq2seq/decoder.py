"""The second half: writes a target, one step after the other, and trains on whole runs of steps at once."""

import torch
from torch import Tensor

from .. import functional
from ..accelerate import accelerate
from .one_call import in_one_call, projects
from .teacher_forcing import draws


class Decoder(torch.nn.Module):
    """A recurrent layer, of one direction, whose state is projected to what it says next.

    Its `state_dict` is that of the three modules, under `embedding`, `rnn` and `output`. For tied weights, set
    `output.weight = embedding.weight`.

    Args:
        rnn: a GRU, LSTM or RNN, torch.nn's or ours; torch.nn's is swapped for ours. Its input is the embedding, and
            with a context at every step that context behind it.
        output: (H to V) logits of tokens, or (H to F) vectors.
        embedding: torch.nn.Embedding for tokens; where vectors are fed back, None or any module from (..., F) to
            (..., E).

    Raises:
        TypeError, ValueError: a module of another kind, or a layer that can't decode.
    """

    def __init__(self, rnn: torch.nn.RNNBase, output: torch.nn.Linear, embedding: torch.nn.Module | None = None):
        super().__init__()
        if not isinstance(rnn, torch.nn.RNNBase):
            raise TypeError(f"rnn: expected a GRU, LSTM or RNN, got {type(rnn).__name__}")
        if rnn.bidirectional or rnn.proj_size:
            raise ValueError(
                f"rnn: expected one direction and no projection, got bidirectional={rnn.bidirectional}, "
                f"proj_size={rnn.proj_size}"
            )
        if not isinstance(output, torch.nn.Linear):
            raise TypeError(f"output: expected torch.nn.Linear, got {type(output).__name__}")
        if isinstance(embedding, torch.nn.Embedding) and embedding.num_embeddings < output.out_features:
            raise ValueError(
                f"embedding: expected at least {output.out_features} rows, one for each token of output, got "
                f"{embedding.num_embeddings}"
            )
        self.embedding, self.rnn, self.output = embedding, accelerate(rnn), output

    @property
    def of_tokens(self) -> bool:
        return isinstance(self.embedding, torch.nn.Embedding)

    def forward(self, inputs: Tensor, hx, *, context: Tensor | None = None, teacher_forcing: float = 1.0) -> Tensor:
        """What it says after each of its inputs.

        Of every step but the first, the input is the one given with the probability `teacher_forcing`, one coin for the
        batch, and else what it said a step before: the likeliest token, without a gradient, or the vector, with one.
        All steps between two such are one run of the layers; all runs, with attention and output, are one call.

        Args:
            inputs: (B, T) tokens or (B, T, F) vectors: the start, then the targets but for the last.
            hx: h_0 (L, B, H), for the LSTM (h_0, c_0).
            context: (B, C), behind the input of every step.
            teacher_forcing: a ratio, from 0 to 1.

        Returns:
            (B, T, V) or (B, T, F).
        """
        starts, masks = [0], None
        if teacher_forcing != 1:
            forced, masks = self._draws(inputs, teacher_forcing)
            starts += [step + 1 for step, target in enumerate(forced[:-1].tolist()) if not target]
        outputs = in_one_call(self, inputs, hx, context, starts, masks)
        if outputs is not None:
            return outputs
        x = inputs if self.embedding is None else self.embedding(inputs)
        if len(starts) == 1:
            return self.project(self._layers(x, hx, context, masks)[0])
        queries, said = [], None
        for first, end in zip(starts, [*starts[1:], x.size(1)], strict=True):
            run = x[:, :end] if said is None else said
            if said is not None and end - first > 1:
                run = torch.cat([said, x[:, first + 1 : end]], 1)
            of_run = None if masks is None else [mask[first:end] for mask in masks]
            query, hx = self._layers(run, hx, context, of_run)
            queries.append(query)
            if end < x.size(1):
                said = self._fed_back(query[:, -1:])
        return self.project(torch.cat(queries, 1))

    def _draws(self, inputs: Tensor, teacher_forcing: float):
        """After which steps the input is the target, and the masks between the layers."""
        rnn = self.rnn
        dropout = rnn.dropout if self.training else 0.0
        shape = (inputs.size(0), rnn.hidden_size)
        return draws(teacher_forcing, inputs.size(1), shape, rnn.num_layers, dropout, self.output.weight)

    @projects
    def project(self, query: Tensor) -> Tensor:
        """(B, T, H) states to (B, T, V) logits or (B, T, F) vectors."""
        return self.output(query)

    def _fed_back(self, query: Tensor) -> Tensor:
        """(B, 1, E): what the last state (B, 1, H) says, as the next input."""
        if self.of_tokens:
            with torch.no_grad():
                said = self.project(query).argmax(-1)
        else:
            said = self.project(query)
        return said if self.embedding is None else self.embedding(said)

    def _layers(self, x: Tensor, hx, context: Tensor | None, masks: list[Tensor] | None):
        """The layers over (B, T, E), with those masks (T, B, H) between them, or where None as torch.nn draws them."""
        if context is not None:
            x = torch.cat([x, context.unsqueeze(1).expand(-1, x.size(1), -1)], -1)
        if masks is None or functional.why_not_fused(x) is not None:
            if self.rnn.batch_first:
                return self.rnn(x, hx)
            output, hx = self.rnn(x.transpose(0, 1), hx)
            return output.transpose(0, 1), hx
        x = x.transpose(0, 1)
        cell, states, finals = self.rnn.mode.lower(), hx if isinstance(hx, tuple) else (hx,), []
        for layer, weights in enumerate(self.rnn._weights()):
            x, *final = functional.rnn(cell, x, tuple(s[layer : layer + 1] for s in states), [weights])
            finals.append(final)
            if layer < len(masks):
                x = x * masks[layer]
        finals = tuple(torch.cat(states) for states in zip(*finals, strict=True))
        return x.transpose(0, 1), finals if isinstance(hx, tuple) else finals[0]

    def parameters_of_search(self) -> functional.Decoder:
        """What functional's searches take."""
        weights = [weight for layer in self.rnn._weights() for weight in layer]
        embedding = self.embedding.weight if self.of_tokens else None
        return functional.Decoder(self.rnn.mode.lower(), weights, self.output.weight, self.output.bias, embedding)

    def memory(self) -> functional.Memory | None:
        """What the searches attend to."""
        return None
