"""Attention, the seq2seq one: a decoder's states ask, the encoder's states answer."""

import torch
from torch import Tensor
from torch.nn import Linear

from ..functional import additive_attention, why_not_fused
from ..functional.attention import attention_op, dropout_seed
from ..functional.attention_inputs import checked_lengths

SCORES = ("scaled_dot", "dot", "general", "additive", "gaussian", "boxcar", "epanechnikov")


class Attention(torch.nn.Module):
    """Contexts sum_j alpha_j v_j, with weights alpha = softmax(score(q, k_j)) over the keys.

    The keys are projected once, by `init_keys`; then `forward` takes one query or many, as often as it is called.

    The scores of projected q and k: "scaled_dot" q . k / sqrt(width); "dot" q . k; "general" q W k with k as it is
    (Luong, arXiv 1508.04025); "additive" v . tanh(q + k) (Bahdanau, arXiv 1409.0473); of their distance d "gaussian"
    -d^2 / 2, "boxcar" 1 where d <= 1 else 0, "epanechnikov" max(0, 1 - d), which has no second derivative.

    Args:
        hidden_dim: width of the projected queries and keys; with many heads also of the context.
        input_dim: width of the keys; `hidden_dim` where None.
        proj_values: project the values too; else they are taken as they are (always projected with many heads).
        query_dim, value_dim: width of the queries, and of the values; `hidden_dim` and `input_dim` where None.
        num_heads: the width is split over the heads; with `wide` each has it whole; then joined and projected back.
        score: one of the above.
        dropout: the probability of dropping a weight in training; not for "additive".
        empty_rows: what a query gets that no key takes part for: "zeros", "nan" or "uniform".

    Attributes:
        alphas: the weights of the last call, detached: (B, L, S), with many heads (B, H, L, S).

    Raises:
        ValueError: an argument out of range, named in the message.
    """

    def __init__(
        self,
        hidden_dim: int,
        input_dim: int | None = None,
        proj_values: bool = False,
        *,
        query_dim: int | None = None,
        value_dim: int | None = None,
        num_heads: int = 1,
        wide: bool = False,
        score: str = "scaled_dot",
        dropout: float = 0.0,
        empty_rows: str = "zeros",
    ):
        super().__init__()
        if score not in SCORES:
            raise ValueError(f"score: expected one of {', '.join(SCORES)}, got {score!r}")
        if num_heads < 1 or (not wide and hidden_dim % num_heads):
            raise ValueError(f"num_heads: expected a divisor of hidden_dim={hidden_dim}, got {num_heads}")
        if score == "additive" and (num_heads > 1 or dropout):
            raise ValueError(f"score: additive has one head and no dropout, got {num_heads} and {dropout}")
        if score == "general" and num_heads > 1:
            raise ValueError(f"score: general has one head, got {num_heads}")
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout: expected a probability between 0 and 1, got {dropout}")
        input_dim = hidden_dim if input_dim is None else input_dim
        self.hidden_dim, self.input_dim, self.num_heads = hidden_dim, input_dim, num_heads
        self.query_dim = hidden_dim if query_dim is None else query_dim
        self.value_dim = input_dim if value_dim is None else value_dim
        self.width = hidden_dim if wide else hidden_dim // num_heads
        self.score, self.dropout, self.empty_rows = score, dropout, empty_rows
        whole = self.width * num_heads
        general = score == "general"
        self.linear_query = Linear(self.query_dim, input_dim if general else whole, bias=not general)
        self.linear_key = None if general else Linear(input_dim, whole)
        self.linear_value = Linear(self.value_dim, whole) if proj_values or num_heads > 1 else None
        self.linear_out = Linear(whole, hidden_dim) if num_heads > 1 else None
        self.score_weight = torch.nn.Parameter(torch.empty(whole)) if score == "additive" else None
        if self.score_weight is not None:
            torch.nn.init.uniform_(self.score_weight, -(whole**-0.5), whole**-0.5)
        self.alphas = None
        self.keys = self.values = self.mask = self.lengths = None

    def init_keys(
        self, keys: Tensor, mask: Tensor | None = None, *, values: Tensor | None = None, lengths=None
    ) -> None:
        """Projects the keys, for the calls that follow.

        Args:
            keys: (B, S, input_dim).
            mask: bool, (B, S), or broadcastable to (B, L, S): True takes part.
            values: (B, S, value_dim); the keys themselves where None.
            lengths: (B,) integers, 0 <= length <= S: the keys of each row that take part.

        Raises:
            RuntimeError, TypeError: a wrong rank, size or dtype, named in the message.
        """
        values = keys if values is None else values
        for name, tensor, width in (("keys", keys, self.input_dim), ("values", values, self.value_dim)):
            if tensor.dim() != 3 or tensor.shape[:2] != keys.shape[:2] or tensor.size(2) != width:
                raise RuntimeError(f"{name}: expected (B, S, {width}), got {tuple(tensor.shape)}")
        self.mask = mask
        self.lengths = None if lengths is None else checked_lengths(lengths, keys.shape[:1], keys.size(1), keys.device)
        self.keys = self._heads(keys if self.linear_key is None else self.linear_key(keys))
        self.values = self._heads(values if self.linear_value is None else self.linear_value(values))

    def forward(
        self,
        query: Tensor,
        mask: Tensor | None = None,
        *,
        keys: Tensor | None = None,
        values: Tensor | None = None,
        lengths=None,
    ) -> Tensor:
        """The contexts of `query`, from the keys that `init_keys` was given, or from `keys`.

        Args:
            query: (B, L, query_dim): one decoder state (L = 1), or those of all steps at once.
            mask: as for `init_keys`, and holds together with the one given there.
            keys, values, lengths: where there are `keys`, `init_keys` is called with them first.

        Returns:
            (B, L, width of the values), with many heads (B, L, hidden_dim).

        Raises:
            RuntimeError, TypeError: `init_keys` was not called, or a wrong rank, size or dtype, named in the message.
        """
        if keys is not None:
            self.init_keys(keys, values=values, lengths=lengths)
        elif values is not None or lengths is not None:
            raise RuntimeError("values, lengths: expected together with keys, or in init_keys")
        if self.keys is None:
            raise RuntimeError("keys: call init_keys(keys) before the first query")
        if query.dim() != 3 or query.size(0) != self.keys.size(0) or query.size(2) != self.query_dim:
            raise RuntimeError(f"query: expected ({self.keys.size(0)}, L, {self.query_dim}), got {tuple(query.shape)}")
        masks = [self._mask(m, query) for m in (self.mask, mask) if m is not None]
        if len(masks) == 2:
            masks = [masks[0] & masks[1]]
        q = self._heads(self.linear_query(query))
        if self.score == "additive":
            context, alphas = additive_attention(
                q.squeeze(1),
                self.keys.squeeze(1),
                self.score_weight,
                self.values.squeeze(1),
                attn_mask=masks[0].squeeze(1) if masks else None,
                lengths=self.lengths,
                empty_rows=self.empty_rows,
            )
            self.alphas = alphas.detach()
            return context
        logits, scale = self._logits(q)
        dropout = self.dropout if self.training else 0.0
        seed = dropout_seed(q) if dropout else None
        context, alphas = attention_op(q, self.values)(
            q,
            self.keys,
            self.values,
            logits + masks,
            self.lengths,
            seed,
            False,
            dropout,
            scale,
            "heads",
            self.empty_rows,
        )
        if self.num_heads == 1:
            self.alphas = alphas.detach().squeeze(1)
            return context.squeeze(1)
        self.alphas = alphas.detach()
        return self.linear_out(context.transpose(1, 2).flatten(2))

    def why_not_fused(self, query: Tensor, mask=None, *, keys=None, values=None, lengths=None) -> str | None:
        """Why plain torch operations serve `query`, in one sentence; None where the fused operator does."""
        return why_not_fused(query)

    def __getstate__(self):
        # what init_keys left belongs to a graph, and copies of the module have nothing to do with it
        return self.__dict__ | {"keys": None, "values": None, "mask": None, "lengths": None}

    def extra_repr(self) -> str:
        return f"{self.hidden_dim}, {self.input_dim}, score={self.score!r}, num_heads={self.num_heads}"

    def _heads(self, x: Tensor) -> Tensor:
        """(B, length, H * width) as (B, H, length, width)."""
        if self.num_heads == 1:
            return x.unsqueeze(1)
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _mask(self, mask: Tensor, query: Tensor) -> Tensor:
        if mask.dtype != torch.bool:
            raise RuntimeError(f"mask: expected dtype bool, got {mask.dtype}")
        batch, keys = query.size(0), self.keys.size(2)
        if mask.dim() == 2:
            mask = mask.unsqueeze(1)
        whole = (batch, query.size(1), keys)
        if mask.dim() != 3 or any(m != 1 and m != s for m, s in zip(mask.shape, whole, strict=True)):
            raise RuntimeError(
                f"mask: expected ({batch}, {keys}) or a shape that broadcasts to {whole}, got {tuple(mask.shape)}"
            )
        return mask.unsqueeze(1)

    def _logits(self, q: Tensor) -> tuple[list[Tensor], float]:
        """What is added to the products of q and k, and how those are scaled."""
        if self.score == "gaussian":
            # -|q - k|^2 / 2 = q . k - |k|^2 / 2 - |q|^2 / 2, and the last is the same for every key
            return [self.keys.square().sum(-1).unsqueeze(2) * -0.5], 1.0
        if self.score in ("boxcar", "epanechnikov"):
            # differences and not products, whose rounding would be the square root's; cdist has no half precision
            wide = torch.promote_types(q.dtype, torch.float32)
            distance = torch.cdist(q.to(wide), self.keys.to(wide), compute_mode="donot_use_mm_for_euclid_dist")
            near = (distance <= 1) if self.score == "boxcar" else (1 - distance).clamp(min=0)
            return [near.to(q.dtype)], 0.0
        return [], self.width**-0.5 if self.score == "scaled_dot" else 1.0
