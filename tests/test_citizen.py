"""What torch does with modules: copies, files, hooks, parametrizations, autocast, threads, forks."""

import copy
import io
import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cases import CELLS, LAYERS, draw, make_cell, make_hx, make_layer, pack, twin
from error_rule import assert_as_accurate, run
from oracle import Oracle
from torch.nn.utils import parametrize, skip_init
from torch.testing import assert_close

from seq2seq_fast import nn


def torch_class(cls):
    return getattr(torch.nn, cls.__name__)


def equal(left, right):
    left, right = (torch.utils._pytree.tree_leaves(x) for x in (left, right))
    return len(left) == len(right) and all(map(torch.equal, left, right))


CONSTRUCTORS = {
    "plain": ((5, 7), {}),
    "positional": ((5, 7, 2), {}),
    "flags": (
        (5, 7),
        {"num_layers": 3, "bias": False, "batch_first": True, "dropout": 0.5, "bidirectional": True},
    ),
    "float64": ((5, 7), {"dtype": torch.float64}),
}


@pytest.mark.parametrize("arguments", CONSTRUCTORS)
def test_constructor_and_initial_values_are_torchs(cell, arguments):
    ours, options = LAYERS[cell]
    args, kwargs = CONSTRUCTORS[arguments]
    modules = []
    for cls in (ours, torch_class(ours)):
        torch.manual_seed(5)
        modules.append(cls(*args, **options, **kwargs))
    layer, theirs = modules
    assert repr(layer) == repr(theirs)
    assert list(layer.state_dict()) == list(theirs.state_dict())
    assert equal(layer.state_dict(), theirs.state_dict())
    for name in (
        "mode",
        "input_size",
        "hidden_size",
        "num_layers",
        "bias",
        "batch_first",
        "dropout",
        "bidirectional",
        "proj_size",
    ):
        assert getattr(layer, name) == getattr(theirs, name), name
    assert layer.all_weights[0][0].shape == theirs.all_weights[0][0].shape


def test_constructor_of_a_cell_is_torchs(single):
    ours, options = CELLS[single]
    modules = []
    for cls in (ours, torch_class(ours)):
        torch.manual_seed(5)
        modules.append(cls(5, 7, False, **options))
    assert repr(modules[0]) == repr(modules[1])
    assert equal(modules[0].state_dict(), modules[1].state_dict())


def test_nonlinearity_by_position():
    assert nn.RNN(5, 7, 2, "relu").mode == torch.nn.RNN(5, 7, 2, "relu").mode == "RNN_RELU"


def test_kinship(cell, single):
    layer, small = make_layer(cell, 5, 7), make_cell(single, 5, 7)
    assert isinstance(layer, torch_class(type(layer)))
    assert isinstance(small, torch_class(type(small)))


def test_every_name_of_torch_nn():
    for name in dir(torch.nn):
        assert hasattr(nn, name), name
        if name not in nn.OURS and not name.startswith("__"):
            assert getattr(nn, name) is getattr(torch.nn, name), name
    with pytest.raises(AttributeError, match="GRUU"):
        _ = nn.GRUU


def test_state_dict_both_ways(cell):
    layer = make_layer(cell, 5, 7, 2, bidirectional=True)
    theirs = torch_class(type(layer))(5, 7, 2, bidirectional=True, **LAYERS[cell][1])
    theirs.load_state_dict(layer.state_dict())
    other = make_layer(cell, 5, 7, 2, bidirectional=True)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(theirs.state_dict())
    assert equal(other(draw(4, 3, 5)), layer(draw(4, 3, 5)))


def through_file(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "save": through_file,
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("after_use", (False, True), ids=("fresh", "used"))
def test_copies(cell, how, after_use):
    layer = make_layer(cell, 5, 7, 2, bidirectional=True)
    if after_use:
        layer(draw(4, 3, 5))[0].sum().backward()
    other = COPIES[how](layer)
    assert type(other) is type(layer)
    expected = layer(draw(4, 3, 5))
    assert equal(other(draw(4, 3, 5)), expected)
    if how != "copy":
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        assert equal(layer(draw(4, 3, 5)), expected)
        assert not equal(other(draw(4, 3, 5)), expected)


@pytest.mark.parametrize("how", COPIES)
def test_copies_of_a_cell(single, how):
    cell = make_cell(single, 5, 7)
    assert equal(COPIES[how](cell)(draw(3, 5)), cell(draw(3, 5)))


@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
@pytest.mark.parametrize(
    "convert, dtype",
    (
        (torch.nn.Module.double, torch.float64),
        (torch.nn.Module.half, torch.float16),
        (torch.nn.Module.bfloat16, torch.bfloat16),
        (lambda module: module.to(torch.float64).to("cpu"), torch.float64),
    ),
)
def test_conversions(cell, convert, dtype):
    layer = make_layer(cell, 5, 7, 2)
    layer(draw(4, 3, 5))
    convert(layer)
    assert_as_accurate(
        *(run(module, draw(4, 3, 5, dtype=dtype), backward=False) for module in (layer, twin(layer), Oracle(layer)))
    )


@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
def test_meta_to_empty_and_load(cell):
    expected = make_layer(cell, 5, 7, 2)
    with torch.device("meta"):
        layer = make_layer(cell, 5, 7, 2)
    layer.to_empty(device="cpu")
    layer.load_state_dict(expected.state_dict())
    assert equal(layer(draw(4, 3, 5)), expected(draw(4, 3, 5)))
    with torch.device("meta"):
        assigned = make_layer(cell, 5, 7, 2)
    assigned.load_state_dict(expected.state_dict(), assign=True)
    assert equal(assigned(draw(4, 3, 5)), expected(draw(4, 3, 5)))


def test_skip_init_of_a_cell(single):
    cell = make_cell(single, 5, 7)
    skipped = skip_init(type(cell), 5, 7, **CELLS[single][1])
    skipped.load_state_dict(cell.state_dict())
    assert equal(skipped(draw(3, 5)), cell(draw(3, 5)))


def test_swapped_module_parameters(cell):
    expected = make_layer(cell, 5, 7).double()(draw(4, 3, 5, dtype=torch.float64))
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        layer = make_layer(cell, 5, 7).double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert equal(layer(draw(4, 3, 5, dtype=torch.float64)), expected)


def test_shared_memory(cell):
    layer = make_layer(cell, 5, 7)
    expected = layer(draw(4, 3, 5))
    layer.share_memory()
    assert all(parameter.is_shared() for parameter in layer.parameters())
    assert equal(layer(draw(4, 3, 5)), expected)


def test_weights_replaced_and_changed_in_place(cell):
    layer = make_layer(cell, 5, 7)
    theirs = twin(layer)
    for module in (layer, theirs):
        module.weight_hh_l0 = torch.nn.Parameter(module.weight_hh_l0.detach() * 2)
        with torch.no_grad():
            module.weight_ih_l0 *= 0.5
    assert_close(layer(draw(4, 3, 5)), theirs(draw(4, 3, 5)))


def test_optimizer_steps(cell):
    layer = make_layer(cell, 5, 7, 2)
    theirs = twin(layer)
    for module in (layer, theirs):
        optimizer = torch.optim.Adam(module.parameters(), 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            module(draw(4, 3, 5))[0].square().sum().backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1)
            optimizer.step()
    assert_close(layer.state_dict(), theirs.state_dict(), rtol=1e-4, atol=1e-5)


def test_hooks(cell):
    layer = make_layer(cell, 5, 7)
    expected = layer(draw(4, 3, 5))[0]
    seen = []
    handles = [
        layer.register_forward_pre_hook(lambda module, args: seen.append("before")),
        layer.register_forward_hook(lambda module, args, result: (result[0] * 2, result[1])),
        layer.register_full_backward_hook(lambda module, d_input, d_output: seen.append("backward")),
    ]
    output, _ = layer(draw(4, 3, 5).requires_grad_())
    output.sum().backward()
    assert_close(output, expected * 2)
    assert seen == ["before", "backward"]
    for handle in handles:
        handle.remove()
    assert_close(layer(draw(4, 3, 5))[0], expected)


class Half(torch.nn.Module):
    def forward(self, weight):
        return weight / 2


class Drop(torch.nn.Module):
    """Weight drop, as in AWD-LSTM: dropout of the recurrent weights, a new mask each time they are read."""

    def forward(self, weight):
        return torch.nn.functional.dropout(weight, 0.5, True)


@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
def test_parametrized_weight(cell):
    layer, expected = make_layer(cell, 5, 7), make_layer(cell, 5, 7)
    parametrize.register_parametrization(layer, "weight_hh_l0", Half())
    with torch.no_grad():
        expected.weight_hh_l0 /= 2
    ours, theirs = layer(draw(4, 3, 5)), expected(draw(4, 3, 5))
    assert_close(ours, theirs)
    (ours,) = torch.autograd.grad(ours[0].sum(), layer.parametrizations.weight_hh_l0.original)
    (theirs,) = torch.autograd.grad(theirs[0].sum(), expected.weight_hh_l0)
    assert_close(ours, theirs / 2)


# torch.nn reads a weight once, not at every call
@pytest.mark.needs_extension
@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
def test_weight_drop(cell):
    layer = make_layer(cell, 5, 7)
    plain = {name: p.detach().clone() for name, p in layer.named_parameters()}
    parametrize.register_parametrization(layer, "weight_hh_l0", Drop())
    expected = make_layer(cell, 5, 7)
    outputs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        outputs.append(layer(draw(4, 3, 5))[0])
        torch.manual_seed(seed)
        with torch.no_grad():
            expected.weight_hh_l0.copy_(torch.nn.functional.dropout(plain["weight_hh_l0"], 0.5, True))
        assert_close(outputs[-1], expected(draw(4, 3, 5))[0])
    assert not torch.allclose(*outputs)
    outputs[0].sum().backward()
    assert layer.parametrizations.weight_hh_l0.original.grad.any()


@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
@pytest.mark.parametrize("norm", ("weight_norm", "spectral_norm"))
def test_norms_of_weights(cell, norm):
    layer = make_layer(cell, 5, 7).eval()
    getattr(torch.nn.utils.parametrizations, norm)(layer, "weight_hh_l0")
    expected = make_layer(cell, 5, 7)
    with torch.no_grad():
        expected.weight_hh_l0.copy_(layer.weight_hh_l0)
    assert_close(layer(draw(4, 3, 5)), expected(draw(4, 3, 5)))


AUTOCAST = torch.bfloat16


@pytest.mark.parametrize("with_hx", (False, True), ids=("zeros", "hx"))
@pytest.mark.parametrize("form", ("plain", "two_layers_both_ways", "packed"))
def test_autocast(cell, form, with_hx):
    layer = make_layer(cell, 9, 21, 2 if form.startswith("two") else 1, bidirectional=form.startswith("two"))
    input = pack(draw(5, 3, 9), (2, 5, 1)) if form == "packed" else draw(5, 3, 9)
    hx = make_hx(layer, 3) if with_hx else None
    if cell == "rnn_relu":
        # at 0 relu has no derivative, and rounding chooses a side: hold the units well on or well off
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                parameter.copy_(8 - 16 * (torch.arange(21) % 2)) if name.startswith("bias_ih") else parameter.div_(4)
    oracle = run(Oracle(layer), input, hx)
    with torch.autocast("cpu", AUTOCAST):
        ours, theirs = run(layer, input, hx), run(twin(layer), input, hx)
    # as of bfloat16, whatever dtype the results have: autocast's rounding is what both share
    for name in ours:
        assert ours[name].dtype == theirs[name].dtype, name
    assert_as_accurate(*({n: x.to(AUTOCAST) for n, x in r.items()} for r in (ours, theirs)), oracle)


@pytest.mark.parametrize("with_hx", (False, True), ids=("zeros", "hx"))
@pytest.mark.parametrize("unbatched", (False, True), ids=("batched", "unbatched"))
def test_autocast_of_a_cell(single, with_hx, unbatched):
    cell = make_cell(single, 9, 21)
    input = draw(9) if unbatched else draw(3, 9)
    state = draw(21) if unbatched else draw(3, 21)
    hx = None if not with_hx else (state, state / 2) if single == "lstm" else state
    with torch.autocast("cpu", AUTOCAST):
        ours, theirs = (torch.utils._pytree.tree_leaves(module(input, hx)) for module in (cell, twin(cell)))
    exact = torch.utils._pytree.tree_leaves(twin(cell)(input, hx))
    assert [x.dtype for x in ours] == [x.dtype for x in theirs]
    assert_as_accurate(
        *({str(k): x.to(AUTOCAST).detach() for k, x in enumerate(results)} for results in (ours, theirs)),
        {str(k): x.double().detach() for k, x in enumerate(exact)},
    )


def test_autocast_off_inside(cell):
    layer = make_layer(cell, 5, 7)
    expected = layer(draw(4, 3, 5))
    with torch.autocast("cpu", AUTOCAST), torch.autocast("cpu", enabled=False):
        assert equal(layer(draw(4, 3, 5)), expected)


# work enough for two threads: by hidden units, by rows of the batch, by direction, ragged;
# outputs small enough that torch's own operations on them take one thread: after a fork those wait for ever
LARGE = {
    "hidden_units": lambda cell: (make_layer(cell, 64, 256), draw(10, 1, 64), {}),
    "rows": lambda cell: (make_layer(cell, 32, 64), draw(4, 64, 32), {}),
    "directions": lambda cell: (make_layer(cell, 32, 48, bidirectional=True), draw(5, 16, 32), {}),
    "ragged": lambda cell: (
        make_layer(cell, 33, 65),
        draw(9, 40, 33),
        {"lengths": [k % 10 for k in range(40)]},
    ),
}


@pytest.mark.sanitize
@pytest.mark.parametrize("case", LARGE)
def test_same_bits_run_after_run(cell, case):
    layer, input, options = LARGE[case](cell)
    first = run(layer, input, **options)
    for _ in range(3):
        again = run(layer, input, **options)
        for name in first:
            assert torch.equal(first[name], again[name]), name


@pytest.fixture
def threads_restored():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.sanitize
@pytest.mark.parametrize("case", LARGE)
def test_numbers_of_threads(cell, case, threads_restored):
    layer, input, options = LARGE[case](cell)
    results = []
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        results.append(run(layer, input, **options))
    for other in results[1:]:
        assert_close(other, results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", LARGE)
def test_inference_from_many_threads(cell, case):
    layer, input, options = LARGE[case](cell)
    with torch.inference_mode():
        expected = layer(input, **options)

    def infer(_):
        with torch.inference_mode():
            return layer(input, **options)

    with ThreadPoolExecutor(8) as pool:
        assert all(equal(result, expected) for result in pool.map(infer, range(24)))


def test_training_from_many_threads(cell):
    layer = make_layer(cell, 5, 7, 2)
    expected = run(layer, draw(4, 3, 5))
    with ThreadPoolExecutor(8) as pool:
        for results in pool.map(lambda _: run(layer, draw(4, 3, 5)), range(24)):
            assert_close(results, expected)


def in_child(layer, input, options, queue):
    # poisoning memory would take torch's threads
    torch.use_deterministic_algorithms(False)
    results = run(layer, input, **options)
    # numpy: a tensor would travel through a file descriptor of a process that may have ended
    queue.put({name: result.numpy() for name, result in results.items()})


# torch.nn's layers wait for ever in such a child
@pytest.mark.needs_extension
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("case", LARGE)
def test_fork_after_use(cell, case):
    layer, input, options = LARGE[case](cell)
    expected = run(layer, input, **options)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=in_child, args=(layer, input, options, queue), daemon=True)
    child.start()
    try:
        results = queue.get(timeout=30)
    finally:
        child.kill()
        child.join()
    assert_close({name: torch.from_numpy(x) for name, x in results.items()}, expected, rtol=1e-4, atol=1e-5)
    assert equal(run(layer, input, **options), expected), "the parent goes on as before"
