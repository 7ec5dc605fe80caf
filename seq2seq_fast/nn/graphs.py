"""What torch.jit.script and torch.fx make of our layers."""

import copy

import torch
from torch.fx import Proxy


class Scriptable:
    """torch.jit.script compiles torch's own layer, of the same parameters, in place of ours.

    torch puts that layer into the model it was given too, which runs at torch's speed from then on.
    """

    def __prepare_scriptable__(self) -> torch.nn.Module:
        torch_class = type(self).__bases__[-1]
        if not torch_class.__module__.startswith("torch.nn."):
            return self  # a subclass of ours, whose forward may be its own
        layer = copy.copy(self)
        layer.__class__ = torch_class
        return layer


def fx_node(module: torch.nn.Module, input: Proxy, *args, **kwargs) -> Proxy:
    """The call of `module` as one node of fx's graph. torch.fx gives one by itself to the modules of torch.nn alone."""
    return input.tracer.create_proxy("call_module", input.tracer.path_of_module(module), (input, *args), kwargs)
