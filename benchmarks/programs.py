"""The programs that people write, as they write them on torch.nn: each function gives a model and its inputs."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class EncoderDecoder(nn.Module):
    """Token to token; the encoder's last state starts the decoder, which takes a step at a time. In training a coin is
    flipped for every step: the next input is the target or the decoder's own prediction."""

    def __init__(self, cell: type, vocabulary: int, embedding_size: int, hidden_size: int, layers: int, dropout: float):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding_size)
        self.encoder, self.decoder = (
            cell(embedding_size, hidden_size, layers, dropout=dropout, batch_first=True) for _ in range(2)
        )
        self.output = nn.Linear(hidden_size, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        _, state = self.encoder(self.embedding(source))
        token, scores = target[:, 0], []
        for t in range(target.size(1)):
            output, state = self.decoder(self.embedding(token).unsqueeze(1), state)
            scores.append(self.output(output[:, 0]))
            forced = not self.training or torch.rand(()) < 0.5
            token = target[:, t] if forced else scores[-1].argmax(-1)
        return torch.stack(scores, 1)


class Squares(nn.Module):
    """Real values; what the decoder gives is its next input."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = (nn.GRU(2, 2, batch_first=True) for _ in range(2))
        self.output = nn.Linear(2, 2)

    def forward(self, corners: Tensor) -> Tensor:
        _, state = self.encoder(corners)
        corner, found = corners[:, -1:], []
        for _ in range(2):
            output, state = self.decoder(corner, state)
            corner = self.output(output)
            found.append(corner)
        return torch.cat(found, 1)


class Pronouncer(nn.Module):
    """A bidirectional encoder, and a decoder whose output is the query to the encoder's states."""

    def __init__(self, letters: int, phonemes: int, embedding_size: int, hidden_size: int):
        super().__init__()
        self.letters, self.phonemes = nn.Embedding(letters, embedding_size), nn.Embedding(phonemes, embedding_size)
        self.encoder = nn.GRU(embedding_size, hidden_size, bidirectional=True, batch_first=True)
        self.decoder = nn.GRU(embedding_size, hidden_size, batch_first=True)
        self.keys = nn.Linear(2 * hidden_size, hidden_size)
        self.output = nn.Linear(2 * hidden_size, phonemes)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states, last = self.encoder(self.letters(source))
        output, _ = self.decoder(self.phonemes(target), last.sum(0, keepdim=True))
        keys = self.keys(states)
        context = F.scaled_dot_product_attention(output, keys, keys)
        return self.output(torch.cat([context, output], -1))


class Transformer(nn.Module):
    """Residual connections, a feed-forward of four times the width, no norm."""

    def __init__(self, width: int, heads: int, layers: int):
        super().__init__()
        self.attention = nn.ModuleList(nn.MultiheadAttention(width, heads, batch_first=True) for _ in range(layers))
        self.wide = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.narrow = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for attention, wide, narrow in zip(self.attention, self.wide, self.narrow, strict=True):
            x = x + attention(x, x, x, need_weights=False)[0]
            x = x + narrow(wide(x).relu())
        return x


def tokens(vocabulary: int, batch: int, steps: int) -> tuple[Tensor, Tensor]:
    source, target = torch.randint(vocabulary, (2, batch, steps))
    return source, target


def history():
    return EncoderDecoder(nn.GRU, 9, 5, 16, 1, 0.0).double(), tokens(9, 32, 7)


def plain_rnn():
    return EncoderDecoder(nn.RNN, 1000, 256, 512, 2, 0.5), tokens(1000, 32, 10)


def subsequence():
    return EncoderDecoder(nn.GRU, 10, 128, 256, 3, 0.5), tokens(10, 32, 10)


def squares():
    return Squares(), torch.randn(16, 2, 2)


def pronunciation():
    return Pronouncer(27, 39, 128, 256), (torch.randint(27, (64, 8)), torch.randint(39, (64, 7)))


def minimal_transformer():
    return Transformer(256, 4, 2), torch.randn(32, 10, 256)


PROGRAMS = (history, plain_rnn, subsequence, squares, pronunciation, minimal_transformer)
