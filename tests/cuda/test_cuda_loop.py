"""The GPU's time loop on the CPU's stand-in, against the float64 oracle: every form, cell, dtype and way to split."""

import pytest
import torch
from cases import draw, make_hx, make_layer, pack, twin
from error_rule import assert_as_accurate, error, run
from oracle import Oracle
from stand_in import StandIn, build, in_place_of_the_cpu
from test_lengths import packs

from seq2seq_fast.cuda.loop import STATUSES, Limits, Loop

pytestmark = pytest.mark.needs_extension

HALVES = (torch.bfloat16, torch.float16)


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("stand_in"))


@pytest.fixture(params=("grid", "cluster"))
def form(request):
    return request.param


def check(layer, library, form, input, hx=None, *, device=(), **lengths):
    """Holds `layer`, one of seq2seq_fast.nn's, on the stand-in to the error rule; gives the plans it ran by."""
    theirs = packs(layer) if lengths else twin(layer)
    expected = run(theirs, input, hx, **lengths), run(Oracle(layer), input, hx, **lengths)
    with in_place_of_the_cpu(library, form, **dict(device)) as gpu:
        ours = run(layer, input, hx, **lengths)
    assert gpu.plans
    assert_as_accurate(ours, *expected)
    return [plan for _, plan in gpu.plans]


def ragged(steps: int, batch: int) -> torch.Tensor:
    return torch.arange(batch) * 7 % steps + 1


def packed(input, lengths):
    """Longest first, so that nothing is left to put in order."""
    return torch.nn.utils.rnn.PackedSequence(
        *pack(input, lengths.sort(descending=True).values, enforce_sorted=True)[:2]
    )


@pytest.mark.parametrize("dtype", (torch.float32, *HALVES))
def test_a_layer_is_as_accurate_as_torchs(library, form, cell, dtype):
    layer = make_layer(cell, 5, 63, bidirectional=True, dtype=dtype)
    check(layer, library, form, draw(4, 3, 5, dtype=dtype), make_hx(layer, 3, dtype))


@pytest.mark.parametrize("hidden_size", (1, 8, 33, 257))
def test_any_hidden_size(library, form, hidden_size):
    for cell, dtype in (("gru", torch.bfloat16), ("lstm", torch.float32)):
        layer = make_layer(cell, 5, hidden_size, dtype=dtype)
        check(layer, library, form, draw(3, 2, 5, dtype=dtype), make_hx(layer, 2, dtype))


def test_padded_slots(library):
    layer = make_layer("gru", 5, 512, dtype=torch.bfloat16)
    check(layer, library, "cluster", draw(2, 1, 5, dtype=torch.bfloat16), make_hx(layer, 1, torch.bfloat16))


# units of a block, and whether weights are left over for shared memory
@pytest.mark.parametrize(
    ("hidden_size", "sms", "units"), ((63, 8, 8), (63, 4, 16), (63, 2, 32), (63, 1, 64), (200, 4, 64))
)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_any_share_of_a_block(library, cell, dtype, hidden_size, sms, units):
    layer = make_layer(cell, 5, hidden_size, dtype=dtype)
    plans = check(layer, library, "grid", draw(3, 18, 5, dtype=dtype), make_hx(layer, 18, dtype), device={"sms": sms})
    assert [plan.units for plan in plans] == [units, units]


@pytest.mark.parametrize("sms", (2, 16, 132))
def test_any_number_of_rows(library, form, cell, sms):
    """More than a group's one turn takes; groups that share the rows, evenly or not; rows that end at any step."""
    layer = make_layer(cell, 5, 31, bidirectional=True)
    input = packed(draw(5, 70, 5), ragged(5, 70))
    plans = check(layer, library, form, input, make_hx(layer, 70), device={"sms": sms})
    assert plans[0].groups == (5 if sms == 132 else 1 if sms == 2 else plans[0].groups)


@pytest.mark.parametrize("batch_first", (False, True), ids=("time_first", "batch_first"))
def test_lengths_of_padded_input(library, form, cell, batch_first):
    layer = make_layer(cell, 5, 17, bidirectional=True, batch_first=batch_first)
    input = draw(*((4, 6) if batch_first else (6, 4)), 5)
    check(layer, library, form, input, make_hx(layer, 4), lengths=torch.tensor([2, 6, 1, 4]))


def test_rows_of_no_steps_keep_their_state(library, form, cell):
    layer = make_layer(cell, 5, 17, bidirectional=True)
    arguments = (draw(3, 4, 5), make_hx(layer, 4))
    lengths = torch.tensor([0, 3, 0, 1])
    oracle = run(Oracle(layer), *arguments, lengths=lengths)
    with in_place_of_the_cpu(library, form):
        ours = run(layer, *arguments, lengths=lengths)
    assert_as_accurate(ours, {name: exact.float() for name, exact in oracle.items()}, oracle)


@pytest.mark.parametrize("seed", range(1, 9))
def test_no_order_of_events_matters(library, form, seed):
    """Blocks and threads that are held up for a while; the same bits each time."""
    for cell in ("gru", "lstm"):
        layer = make_layer(cell, 5, 31, bidirectional=True, dtype=torch.bfloat16)
        input, hx = packed(draw(4, 20, 5), ragged(4, 20)), make_hx(layer, 20)
        with in_place_of_the_cpu(library, form, sms=16) as gpu:
            fair = run(layer, input, hx)
            gpu.seed = seed
            unfair = run(layer, input, hx)
        assert fair.keys() == unfair.keys()
        for name in fair:
            assert torch.equal(fair[name], unfair[name]), name


def test_without_a_bias_and_without_a_state(library, form, cell):
    check(make_layer(cell, 5, 17, bias=False), library, form, draw(4, 3, 5))


def test_inference_gives_the_bits_of_training(library, form, cell):
    layer = make_layer(cell, 5, 17, bidirectional=True)
    with in_place_of_the_cpu(library, form):
        trained = run(layer, draw(4, 3, 5))
        with torch.no_grad():
            infers = run(layer, draw(4, 3, 5), backward=False)
    for name, result in infers.items():
        assert torch.equal(result, trained[name]), name


def test_tf32_is_as_accurate_as_float16(library, form, cell):
    """Which has as many bits; float32 without the flag is far better."""
    layer = make_layer(cell, 5, 63)
    input, hx = draw(4, 3, 5), make_hx(layer, 3)
    exact = run(Oracle(layer), input, hx)
    results = []
    for on in (True, False):
        with in_place_of_the_cpu(library, form, tf32=on):
            results.append(run(layer, input, hx))
    tf32, float32 = results
    float16 = run(twin(layer).half(), input, hx)
    assert_as_accurate(
        {name: result.half() for name, result in tf32.items()}, float16, {n: e for n, e in exact.items()}
    )
    assert error(tf32["output"], exact["output"]) > 20 * error(float32["output"], exact["output"])


def plan(library, form, *, hidden_size, batch, directions=1, cell=0, dtype=1, max_sms=0, backward=False, **limits):
    loop = Loop()
    loop.cell, loop.dtype, loop.directions = cell, dtype, directions
    loop.hidden_size, loop.steps, loop.batch, loop.max_sms = hidden_size, 10, batch, max_sms
    limits = Limits(limits.get("sms", 132), limits.get("shared_memory", 232448), limits.get("cluster", 16), 0)
    return StandIn(library).plan(loop, form, backward, limits)


def test_the_plans_of_an_h200(library):
    """Blocks of a group, groups of a direction, units of a block."""
    for form, sizes, expected in (
        ("grid", {"hidden_size": 1024, "batch": 32}, (128, 1, 8)),
        ("grid", {"hidden_size": 1024, "batch": 32, "directions": 2}, (64, 1, 16)),
        ("grid", {"hidden_size": 256, "batch": 64}, (32, 4, 8)),
        ("grid", {"hidden_size": 256, "batch": 64, "max_sms": 64}, (32, 2, 8)),
        ("grid", {"hidden_size": 2048, "batch": 16, "cell": 1}, (128, 1, 16)),
        ("cluster", {"hidden_size": 512, "batch": 64}, (16, 4, 32)),
        ("cluster", {"hidden_size": 512, "batch": 64, "cell": 1, "backward": True}, (16, 4, 32)),
        ("cluster", {"hidden_size": 256, "batch": 64}, (16, 4, 16)),
        ("cluster", {"hidden_size": 256, "batch": 256}, (8, 16, 32)),
        ("cluster", {"hidden_size": 64, "batch": 512}, (4, 32, 16)),
    ):
        status, found = plan(library, form, **sizes)
        assert (status, found.blocks, found.groups, found.units) == ("ok", *expected), (form, sizes)
        assert found.shared_memory <= 232448


def test_what_does_not_fit_is_refused(library):
    sizes = {"hidden_size": 512, "batch": 16}
    assert plan(library, "cluster", **sizes, cluster=1)[0] == "not_supported"
    assert plan(library, "cluster", **sizes, sms=7)[0] == "too_many_blocks"
    assert plan(library, "cluster", hidden_size=1024, batch=16, cell=1)[0] == "too_large"
    assert plan(library, "grid", hidden_size=4096, batch=16)[0] == "too_large"
    assert plan(library, "grid", hidden_size=132 * 64 + 1, batch=16)[0] == "too_many_blocks"
    assert plan(library, "grid", hidden_size=64, batch=16, max_sms=1, directions=2)[0] == "too_many_blocks"
    assert plan(library, "grid", hidden_size=-1, batch=16)[0] == "bad_argument"
    assert plan(library, "grid", **sizes, cell=4)[0] == "bad_argument"
    assert plan(library, "grid", **sizes, dtype=3)[0] == "bad_argument"


def test_a_call_is_checked_before_it_runs(library):
    stand_in, loop, sizes = StandIn(library), Loop(), torch.ones(1, dtype=torch.int64)
    stand_in.limits(None)

    def forward(form=0):
        return STATUSES[stand_in.functions.loop_forward(loop, form, None)]

    loop.directions, loop.hidden_size, loop.steps, loop.batch = 1, 8, 1, 1
    assert forward() == "bad_argument"
    assert STATUSES[stand_in.functions.loop_backward(loop, 0, None)] == "bad_argument"
    loop.active = loop.by_step = sizes.data_ptr()
    memory = torch.zeros(512)
    for name in ("weight_hh", "x_gates", "output", "h_n"):
        setattr(loop.direction[0], name, memory.data_ptr())
    assert forward() == "no_workspace"
    assert forward(2) == "bad_argument"
    loop.batch = 0
    assert forward() == "ok"
