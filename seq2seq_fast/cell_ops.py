"""The recurrent operators on CUDA: kernels/cell_layer.py, imported when it is first needed, since it needs triton."""

import torch

from .ops import library


def _on_cuda(name: str, input: int):
    """Registers the launcher of that name; `input` is the place of the argument whose device runs it."""

    def launch(*args):
        from .kernels import cell_layer

        # Triton launches on the current device
        with torch.cuda.device_of(args[input]):
            return getattr(cell_layer, name)(*args)

    library.impl(name, launch, "CUDA")


_on_cuda("rnn_layer", 0)
_on_cuda("rnn_layer_train", 0)
_on_cuda("rnn_layer_backward", 3)
