"""What each way for an operator to meet autograd costs, for a call that computes almost nothing.

`python -m benchmarks.call_cost`: microseconds of a forward, and of a forward with its backward (GRU, T 2, B 1, H 2).
"""

import torch
from tabulate import tabulate
from torch.autograd import Function

from seq2seq_fast import nn

from . import timing

OPS = torch.ops.seq2seq_fast
PLAIN = (None, None, "gru", False)  # lengths, batch_sizes, cell, bidirectional
NEEDS = [True, False, False, True]


def backward(d_output, reserve, x, weights):
    d_input, _, _, *d_weights = OPS.rnn_layer_backward([d_output, None], reserve, NEEDS, x, None, None, weights, *PLAIN)
    return d_input, *d_weights


class PythonFunction(Function):
    @staticmethod
    def forward(ctx, x, *weights):
        output, _, reserve = OPS.rnn_layer_train(x, None, None, weights, *PLAIN)
        ctx.save_for_backward(x, reserve, *weights)
        return output

    @staticmethod
    def backward(ctx, d_output):
        x, reserve, *weights = ctx.saved_tensors
        return backward(d_output, reserve, x, weights)


@torch.library.custom_op("seq2seq_fast_call_cost::layer", mutates_args=())
def custom_op(x: torch.Tensor, weights: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    output, _, reserve = OPS.rnn_layer_train(x, None, None, weights, *PLAIN)
    return output, reserve


def custom_setup(ctx, inputs, output):
    ctx.x, ctx.weights = inputs
    ctx.reserve = output[1]


def custom_backward(ctx, d_output, _):
    d_input, *d_weights = backward(d_output, ctx.reserve, ctx.x, ctx.weights)
    return d_input, d_weights


custom_op.register_autograd(custom_backward, setup_context=custom_setup)


def main() -> None:
    torch.set_num_threads(1)
    layer, x = nn.GRU(2, 2), torch.randn(2, 1, 2, requires_grad=True)
    weights = list(layer.parameters())
    linear = torch.nn.Linear(2, 2)
    ways = {
        "torch.nn.functional.linear, for scale": lambda: linear(x),
        "C++ autograd::Function (ours)": lambda: OPS.rnn_layer(x, None, None, weights, *PLAIN)[0],
        "Python autograd.Function": lambda: PythonFunction.apply(x, *weights),
        "custom_op with register_autograd": lambda: custom_op(x, weights)[0],
        "the whole layer (ours)": lambda: layer(x)[0],
    }

    def step(way):
        def run():
            way().sum().backward()
            x.grad = None
            for parameter in (*weights, *linear.parameters()):
                parameter.grad = None

        return run

    rows = []
    for name, way in ways.items():
        for run in (way, step(way)):
            timing.sample(run, 300)
        rows.append([name, *(min(timing.sample(run, 300) for _ in range(15)) * 1e6 for run in (way, step(way)))])
    print(tabulate(rows, headers=["us", "forward", "forward and backward"], tablefmt="github", floatfmt=".1f"))


if __name__ == "__main__":
    main()
