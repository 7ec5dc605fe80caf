"""An encoder-decoder as people write it on torch.nn: a loop in Python that takes one step of a layer at a time."""

import torch
from torch import Tensor, nn


class PlainSeq2Seq(nn.Module):
    """Token to token. A coin for every step of the batch: the next input is the target, or the likeliest token.

    Args:
        embed_source: from a source to (B, S, E).
        encoder, decoder: a GRU, LSTM or RNN of torch.nn each, batch first.
        embed_target: of the tokens that go into the decoder.
        output: from the decoder's state to logits.
    """

    def __init__(self, embed_source, encoder, embed_target, decoder, output, *, bos: int, ratio: float):
        super().__init__()
        self.embed_source, self.encoder = embed_source, encoder
        self.embed_target, self.decoder, self.output = embed_target, decoder, output
        self.bos, self.ratio = bos, ratio

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        _, state = self.encoder(self.embed_source(source))
        token = torch.full((len(target),), self.bos)
        logits = []
        for step in range(target.size(1)):
            output, state = self.decoder(self.embed_target(token).unsqueeze(1), state)
            logits.append(self.output(output[:, 0]))
            forced = not self.training or torch.rand(()) < self.ratio
            token = target[:, step] if forced else logits[-1].argmax(-1)
        return torch.stack(logits, 1)

    @torch.no_grad()
    def greedy(self, source: Tensor, max_steps: int) -> Tensor:
        _, state = self.encoder(self.embed_source(source))
        token = torch.full((len(source),), self.bos)
        tokens = []
        for _ in range(max_steps):
            output, state = self.decoder(self.embed_target(token).unsqueeze(1), state)
            token = self.output(output[:, 0]).argmax(-1)
            tokens.append(token)
        return torch.stack(tokens, 1)
