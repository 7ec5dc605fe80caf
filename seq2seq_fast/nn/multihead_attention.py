"""MultiheadAttention: torch.nn's, with a `forward` of our own."""

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from .. import functional
from ..functional.attention import attention_op, dropout_seed
from .graphs import Proxy, Scriptable, fx_node


class MultiheadAttention(Scriptable, torch.nn.MultiheadAttention):
    """torch.nn.MultiheadAttention, faster: its constructor, parameters, initial values, `state_dict` and arguments.

    concat_h(softmax(Q_h K_h^T / sqrt(E / H) + mask) V_h) W_out, as on the torch.nn.MultiheadAttention page. A query
    whose keys are all masked gets zeros, and weights of zero, where torch gives NaN.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Shapes and meaning as on the torch.nn page; batch first or not, batched or not.

        Returns:
            output like query, and with `need_weights` the weights after dropout: (B, L, S), or (B, H, L, S).

        Raises:
            AssertionError, RuntimeError: as torch.nn.MultiheadAttention.
        """
        options = (key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
        if isinstance(query, Proxy):
            return fx_node(self, query, key, value, *options)
        if self.why_not_fused(query, key, value, *options) is not None:
            return super().forward(query, key, value, *options)
        self._check(query, key, value, key_padding_mask, attn_mask, is_causal)
        batched = query.dim() == 3
        if not batched:
            query, key, value = self._same_for_same(lambda x: x.unsqueeze(0), query, key, value)
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = self._same_for_same(lambda x: x.transpose(0, 1), query, key, value)
        elif torch.is_grad_enabled():
            # batch first, torch copies too, and programs add to their input in place before backward
            query, key, value = self._same_for_same(torch.clone, query, key, value)
        if is_causal and (need_weights or key_padding_mask is not None):
            is_causal = False  # a hint, of which torch makes nothing here either: the mask says it all
        masks = [] if attn_mask is None or is_causal else [self._four_dimensions(attn_mask, query.size(0))]
        if key_padding_mask is not None:
            masks.append(key_padding_mask[:, None, None, :])

        q, k, v = self._project(query, key, value)
        if self.bias_k is not None:
            k = torch.cat([k, self.bias_k.expand(k.size(0), 1, -1)], 1)
            v = torch.cat([v, self.bias_v.expand(v.size(0), 1, -1)], 1)
        q, k, v = (x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for x in (q, k, v))
        if self.add_zero_attn:
            k, v = pad(k, (0, 0, 0, 1)), pad(v, (0, 0, 0, 1))
        masks = [self._takes_part(mask, k.size(2), q.dtype) for mask in masks]

        dropout = self.dropout if self.training else 0.0
        weights = "none" if not need_weights else "average" if average_attn_weights else "heads"
        seed = dropout_seed(q) if dropout else None
        scale = self.head_dim**-0.5
        context, *alphas = attention_op(q, v)(q, k, v, masks, None, seed, is_causal, dropout, scale, weights, "zeros")
        output = linear(context.transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias)
        if not batched:
            return output.squeeze(0), alphas[0].squeeze(0) if alphas else None
        return output if self.batch_first else output.transpose(0, 1), alphas[0] if alphas else None

    def why_not_fused(
        self,
        query: Tensor,
        key=None,
        value=None,
        key_padding_mask=None,
        need_weights=True,
        attn_mask=None,
        average_attn_weights=True,
        is_causal=False,
    ) -> str | None:
        """Why torch's own code serves a call, in one sentence; None where the fused operator does."""
        if query.is_nested:
            return "query is a nested tensor"
        if query.is_cuda and not need_weights and key_padding_mask is None and (attn_mask is None or is_causal):
            return f"plain attention on {query.device}, where torch's kernels are as good as it gets"
        return functional.why_not_fused(query)

    def _check(self, query, key, value, key_padding_mask, attn_mask, is_causal: bool) -> None:
        if query.dim() not in (2, 3):
            raise AssertionError(
                f"query should be unbatched 2D or batched 3D tensor but received {query.dim()}-D tensor"
            )
        for name, tensor in (("key", key), ("value", value)):
            if tensor.dim() != query.dim():
                raise AssertionError(f"{name}: expected {query.dim()} dimensions like query, got {tensor.dim()}")
        for name, tensor, width in (
            ("query", query, self.embed_dim),
            ("key", key, self.kdim),
            ("value", value, self.vdim),
        ):
            if tensor.size(-1) != width:
                raise AssertionError(f"{name}: expected a width of {width}, got {tensor.size(-1)}")
        time = 0 if query.dim() == 2 or not self.batch_first else 1
        queries, keys = query.size(time), key.size(time)
        batch = () if query.dim() == 2 else (query.size(1 - time),)
        if key.shape[:-1] != value.shape[:-1] or (batch and key.size(1 - time) != batch[0]):
            raise AssertionError(
                f"key, value: expected the batch of query and the same length, got {tuple(key.shape)} and "
                f"{tuple(value.shape)}"
            )
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        whole = (batch[0] if batch else 1) * self.num_heads
        for name, mask, shapes in (
            ("key_padding_mask", key_padding_mask, [(*batch, keys)]),
            ("attn_mask", attn_mask, [(queries, keys), (whole, queries, keys)]),
        ):
            if mask is None:
                continue
            # each by itself: Dynamo makes no guard of `not in` where a size is symbolic
            if not any(mask.shape == shape for shape in shapes):
                expected = " or ".join(map(str, shapes))
                raise RuntimeError(f"{name}: expected shape {expected}, got {tuple(mask.shape)}")
            if mask.dtype != torch.bool and not mask.is_floating_point():
                raise AssertionError(f"{name}: only bool and floating types are supported, got {mask.dtype}")

    @staticmethod
    def _same_for_same(change, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`change` of each, where one tensor that is given twice stays one: it is then projected in one product."""
        changed = change(key)
        new_value = changed if value is key else change(value)
        return changed if query is key else change(query), changed, new_value

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """query, key and value, each (B, length, E), in as few products as there are inputs."""
        bias = self.in_proj_bias
        if not self._qkv_same_embed_dim:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            biases = (None,) * 3 if bias is None else bias.chunk(3)
            return tuple(map(linear, (query, key, value), weights, biases))
        weight, embed = self.in_proj_weight, self.embed_dim
        if query is key and key is value:
            return linear(query, weight, bias).chunk(3, -1)
        first, rest = (None, None) if bias is None else bias.split([embed, 2 * embed])
        if key is value:
            return linear(query, weight[:embed], first), *linear(key, weight[embed:], rest).chunk(2, -1)
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        return tuple(map(linear, (query, key, value), weight.chunk(3), biases))

    def _four_dimensions(self, attn_mask: Tensor, batch: int) -> Tensor:
        return (
            attn_mask[None, None]
            if attn_mask.dim() == 2
            else attn_mask.view(batch, self.num_heads, *attn_mask.shape[1:])
        )

    @staticmethod
    def _takes_part(mask: Tensor, keys: int, dtype: torch.dtype) -> Tensor:
        """torch.nn's mask, where True is ignored, as the operator's; keys that were added to the given ones count."""
        added = keys - mask.size(-1)
        if added:
            mask = pad(mask, (0, added))
        return ~mask if mask.dtype == torch.bool else mask.to(dtype)
