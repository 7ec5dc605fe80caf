"""The operators of decoding: schemas, and their shapes for the compiler. Their contract is reference_search.py."""

import torch

from . import reference_search
from .ops import library

DECODER_ARGS = (
    "Tensor? context, Tensor h_0, Tensor? c_0, Tensor[] weights, str cell, Tensor weight_out, Tensor? bias_out, "
    "Tensor? keys, Tensor? values, Tensor? lengths, Tensor? mask, Tensor? weight_query, Tensor? bias_query, "
    "Tensor? score_weight, str score, str empty_rows"
)
SEARCH_ARGS = (
    f"Tensor start, Tensor embedding, {DECODER_ARGS}, int max_steps, int? eos, int pad, int beams, "
    "float length_penalty, Tensor? forced, Tensor? uniforms, float temperature, int top_k, float top_p, bool alphas"
)
FEEDBACK_ARGS = f"Tensor start, {DECODER_ARGS}, int steps, bool alphas"

for schema in (
    # [tokens, lengths, scores] and, where asked for, the weights of attention
    f"search({SEARCH_ARGS}) -> Tensor[]",
    f"search_composite({SEARCH_ARGS}) -> Tensor[]",
    # [outputs] and, where asked for, the weights of attention
    f"feedback({FEEDBACK_ARGS}) -> Tensor[]",
    f"feedback_composite({FEEDBACK_ARGS}) -> Tensor[]",
):
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))


def _search_shapes(start, embedding, context, h_0, *args):
    keys, (max_steps, _, _, beams), alphas = args[5], args[14:18], args[-1]
    hypotheses = (start.size(0), beams)
    outputs = [start.new_empty(*hypotheses, max_steps), start.new_empty(hypotheses), h_0.new_empty(hypotheses)]
    return [*outputs, h_0.new_empty(*hypotheses, max_steps, keys.size(1))] if alphas else outputs


def _feedback_shapes(start, context, h_0, *args):
    keys, steps, alphas = args[5], args[-2], args[-1]
    outputs = [start.new_empty(start.size(0), steps, start.size(1))]
    return [*outputs, start.new_empty(start.size(0), steps, keys.size(1))] if alphas else outputs


for name, reference, shapes in (
    ("search", reference_search.search, _search_shapes),
    ("feedback", reference_search.feedback, _feedback_shapes),
):
    library.impl(f"{name}_composite", reference, "CompositeExplicitAutograd")
    for op in (name, f"{name}_composite"):
        torch.library.register_fake(f"seq2seq_fast::{op}", shapes, lib=library)
