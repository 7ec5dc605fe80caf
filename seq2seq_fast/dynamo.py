"""Lets torch.compile trace our layers, although they are torch.nn's.

Dynamo refuses every instance of torch.nn.GRU, LSTM and RNN, unless its `allow_rnn` is set, because it would unroll what
torch's `forward` calls. Ours calls operators of one node, so that `allow_rnn` is set while Dynamo looks at one of ours,
and at no other time: torch's own layers are treated as before.
"""

import functools
import importlib.util
import sys
from importlib.abc import MetaPathFinder

BUILDER = "torch._dynamo.variables.builder"


def traces(layers: type) -> None:
    """Lets Dynamo trace instances of `layers`, now or, since its import takes a second, once something imports it."""
    if BUILDER in sys.modules:
        _admit(layers, sys.modules[BUILDER])
    else:
        sys.meta_path.insert(0, _OnImport(layers))


class _OnImport(MetaPathFinder):
    def __init__(self, layers: type):
        self.layers = layers

    def find_spec(self, fullname, path, target=None):
        if fullname != BUILDER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            _admit(self.layers, module)

        spec.loader.exec_module = exec_module
        return spec


def _admit(layers: type, builder) -> None:
    if not hasattr(builder, "VariableBuilder") or not hasattr(builder.config, "allow_rnn"):
        return  # not the Dynamo of torch 2.13, whose refusal this answers
    wrap_module = builder.VariableBuilder.wrap_module

    @functools.wraps(wrap_module)
    def wrap(self, value):
        if not isinstance(value, layers):
            return wrap_module(self, value)
        with builder.config.patch(allow_rnn=True):
            return wrap_module(self, value)

    builder.VariableBuilder.wrap_module = wrap
