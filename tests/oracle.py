"""seq2seq_fast.reference, stacked into a layer shaped like torch.nn's, in float64."""

import torch
from torch.nn.utils.rnn import PackedSequence

from seq2seq_fast import reference


class Oracle(torch.nn.RNNBase):
    """The oracle of a layer: its settings and its weights in float64; no dropout."""

    def __init__(self, layer: torch.nn.RNNBase):
        super().__init__(
            layer.mode,
            layer.input_size,
            layer.hidden_size,
            num_layers=layer.num_layers,
            bias=layer.bias,
            batch_first=layer.batch_first,
            bidirectional=layer.bidirectional,
            proj_size=layer.proj_size,
            dtype=torch.float64,
        )
        self.load_state_dict(layer.state_dict())

    def forward(self, input, hx=None, *, lengths=None):
        if isinstance(input, PackedSequence):
            data, batch_sizes, order, back = input
            hx = self._select(hx, order)
            output, states = self._stack(data, hx, None, batch_sizes)
            return PackedSequence(output, batch_sizes, order, back), self._select(states, back)
        if input.dim() == 2:
            hx = None if hx is None else torch.utils._pytree.tree_map(lambda s: s.unsqueeze(1), hx)
            output, states = self._stack(input.unsqueeze(1), hx, None, None)
            return output.squeeze(1), torch.utils._pytree.tree_map(lambda s: s.squeeze(1), states)
        output, states = self._stack(input.transpose(0, 1) if self.batch_first else input, hx, lengths, None)
        return output.transpose(0, 1) if self.batch_first else output, states

    @staticmethod
    def _select(states, order):
        if states is None or order is None:
            return states
        return torch.utils._pytree.tree_map(lambda s: s[:, order], states)

    def _stack(self, input, hx, lengths, batch_sizes):
        directions = 2 if self.bidirectional else 1
        h_0, c_0 = hx if self.mode == "LSTM" and hx is not None else (hx, None)
        states = []
        for layer in range(self.num_layers):
            rows = slice(layer * directions, (layer + 1) * directions)
            weights = [getattr(self, name) for names in self._all_weights[rows] for name in names]
            input, *state = reference.rnn_layer(
                input,
                None if h_0 is None else h_0[rows],
                None if c_0 is None else c_0[rows],
                weights,
                lengths,
                batch_sizes,
                self.mode.lower(),
                self.bidirectional,
            )
            states.append(state)
        h_n, *c_n = (torch.cat(s) for s in zip(*states, strict=True))
        return input, (h_n, *c_n) if c_n else h_n


class OracleCell(torch.nn.Module):
    """The oracle of a cell: its weights in float64, one step."""

    def __init__(self, cell: torch.nn.RNNCellBase, name: str):
        super().__init__()
        self.name = name
        for parameter, value in cell.named_parameters():
            self.register_parameter(parameter, torch.nn.Parameter(value.detach().double()))

    def forward(self, input, hx=None):
        h_0, c_0 = hx if self.name == "lstm" and hx is not None else (hx, None)
        unbatched = input.dim() == 1
        if unbatched:
            input, h_0, c_0 = (None if x is None else x.unsqueeze(0) for x in (input, h_0, c_0))
        weights = list(self.parameters())
        _, *states = reference.rnn_layer(input, h_0, c_0, weights, None, None, self.name, False)
        if unbatched:
            states = [s.squeeze(0) for s in states]
        return tuple(states) if len(states) == 2 else states[0]
