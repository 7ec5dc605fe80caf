"""torch's own samples for its recurrent modules, with our classes in the place of torch's."""

import collections
import copy
import pickle

import pytest
import torch
from error_rule import assert_as_accurate
from error_rule import error as largest_error
from torch.autograd import gradcheck
from torch.func import functional_call
from torch.testing import assert_close
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

from seq2seq_fast import nn

INFOS = {info.module_cls.__name__: info for info in module_db if info.module_cls.__name__ in nn.OURS}
DTYPES = (torch.float32, torch.float64)


def samples(name, dtype, requires_grad=True):
    """(ours, theirs, args, kwargs, sample) of each of torch's samples: two modules with the same weights."""
    info = INFOS[name]
    torch.manual_seed(0)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=requires_grad, training=True, **extra(name)
    )
    for sample in inputs:
        args, kwargs = sample.constructor_input.args, sample.constructor_input.kwargs
        theirs = info.module_cls(*args, **kwargs, dtype=dtype)
        ours = getattr(nn, name)(*args, **kwargs, dtype=dtype)
        ours.load_state_dict(theirs.state_dict())
        yield ours, theirs, sample.forward_input.args, sample.forward_input.kwargs, sample


def extra(name):
    return {"with_packed_sequence": True} if name in ("RNN", "GRU") else {}


def leaves_of(tree):
    """The floating-point tensors of nested tuples, those of a PackedSequence among them."""
    if torch.is_tensor(tree):
        return [tree] if tree.is_floating_point() else []
    return [leaf for part in tree for leaf in leaves_of(part)] if isinstance(tree, tuple) else []


@pytest.fixture(params=INFOS)
def name(request):
    return request.param


def test_torch_has_samples_for_every_class():
    assert set(INFOS) == set(nn.OURS)
    for name in INFOS:
        assert sum(1 for _ in samples(name, torch.float32)) >= 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_forward_and_gradients(name, dtype):
    pooled = collections.defaultdict(lambda: [0.0, 0.0])
    for ours, theirs, args, kwargs, _ in samples(name, dtype):
        oracle = copy.deepcopy(theirs).double()
        results = [outputs_and_gradients(module, args, kwargs) for module in (ours, theirs, oracle)]
        if name != "MultiheadAttention" or dtype == torch.float64:
            assert_as_accurate(*results)
            continue
        for key, exact in results[2].items():
            for k in (0, 1):
                pooled[key][k] += largest_error(results[k][key], exact)
    # heads of one number: torch is lucky in one sample and we in the next, so all of them count together
    for key, (ours, theirs) in pooled.items():
        assert ours <= (3 if key.startswith("d_") else 2) * theirs, f"{key}: {ours:.2g}, torch's {theirs:.2g}"


def outputs_and_gradients(module, args, kwargs):
    """Both by name, in the module's dtype."""
    dtype = next(module.parameters()).dtype
    args, kwargs = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda x: x.detach().to(dtype).requires_grad_() if x.is_floating_point() else x, (args, kwargs)
    )
    outputs = leaves_of(module(*args, **kwargs))
    wanted = [*leaves_of(args), *module.parameters()]
    gradients = torch.autograd.grad(sum(x.sum() for x in outputs), wanted)
    return {
        **{f"output {k}": x.detach() for k, x in enumerate(outputs)},
        **{f"d_leaf {k}": x for k, x in enumerate(gradients)},
    }


def test_reference_of_the_sample(name):
    for ours, _, args, kwargs, sample in samples(name, torch.float64):
        if any(isinstance(x, torch.nn.utils.rnn.PackedSequence) for x in args):
            continue  # torch gives these samples a reference for unbatched input, and runs it on none of them
        expected = sample.reference_fn(ours, *args, **kwargs)
        assert_close(ours(*args, **kwargs), expected)


def test_gradcheck(name):
    for ours, _, args, _, sample in samples(name, torch.float64):
        if any(isinstance(x, torch.nn.utils.rnn.PackedSequence) for x in args):
            continue  # test_gradients.py checks packed input
        names, weights = zip(*ours.named_parameters(), strict=True)
        flat, spec = torch.utils._pytree.tree_flatten(args)
        count = len(flat)

        def function(*tensors, ours=ours, names=names, count=count, spec=spec):
            given = torch.utils._pytree.tree_unflatten(tensors[:count], spec)
            weights = dict(zip(names, tensors[count:], strict=True))
            return tuple(leaves_of(functional_call(ours, weights, given)))

        tensors = tuple(x.detach().requires_grad_() for x in (*flat, *weights))
        assert gradcheck(function, tensors, fast_mode=True), sample


def test_repr_and_state(name):
    for ours, theirs, args, kwargs, _ in samples(name, torch.float32, requires_grad=False):
        assert repr(ours) == repr(theirs)
        assert list(ours.state_dict()) == list(theirs.state_dict())
        expected = leaves_of(ours(*args, **kwargs))
        for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert all(map(torch.equal, leaves_of(other(*args, **kwargs)), expected))


def test_arguments_are_not_written(name):
    for ours, _, args, kwargs, _ in samples(name, torch.float32, requires_grad=False):
        before = [x.clone() for x in leaves_of(args)]
        with torch.no_grad():
            ours(*args, **kwargs)
        assert all(map(torch.equal, leaves_of(args), before))


def test_strided_arguments(name):
    for ours, _, args, kwargs, _ in samples(name, torch.float64, requires_grad=False):
        strided = torch.utils._pytree.tree_map_only(
            torch.Tensor,
            lambda x: x.repeat_interleave(2, -1)[..., ::2] if x.is_floating_point() else x,
            args,
            is_leaf=lambda x: isinstance(x, torch.nn.utils.rnn.PackedSequence),
        )
        assert_close(leaves_of(ours(*strided, **kwargs)), leaves_of(ours(*args, **kwargs)))


def test_errors(name):
    info = INFOS[name]
    if info.module_error_inputs_func is None:
        pytest.skip(f"torch has no bad samples for {name}")
    errors = info.module_error_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True)
    assert errors
    for error in errors:
        sample = error.module_error_input
        arguments = sample.constructor_input
        if error.error_on == ModuleErrorEnum.CONSTRUCTION_ERROR:
            with pytest.raises(error.error_type, match=error.error_regex):
                getattr(nn, name)(*arguments.args, **arguments.kwargs)
        else:
            module = getattr(nn, name)(*arguments.args, **arguments.kwargs)
            with pytest.raises(error.error_type):
                module(*sample.forward_input.args, **sample.forward_input.kwargs)
