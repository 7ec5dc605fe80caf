"""One program on three engines: torch.nn, accelerate, and seq2seq_fast.seq2seq, with copies of the same weights."""

import copy

import torch
from plain_decoder import PlainSeq2Seq

from seq2seq_fast import accelerate
from seq2seq_fast.seq2seq import Decoder, Encoder, Seq2Seq


def engines(plain: PlainSeq2Seq, **options) -> dict[str, torch.nn.Module]:
    """`options` are those of Seq2Seq."""
    parts = copy.deepcopy(plain)
    fast = Seq2Seq(
        Encoder(parts.encoder, parts.embed_source),
        Decoder(parts.decoder, parts.output, parts.embed_target),
        bos=plain.bos,
        teacher_forcing=plain.ratio,
        **options,
    )
    return {"torch.nn": plain, "accelerate": accelerate(copy.deepcopy(plain)), "seq2seq_fast.seq2seq": fast}
