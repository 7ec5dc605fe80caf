"""Which form of the GPU's loop a layer gets, what it is told, and what becomes of a refused launch."""

import pytest
import torch
from cases import draw, make_layer
from stand_in import build, in_place_of_the_cpu

from seq2seq_fast.cuda import forms, loop

pytestmark = pytest.mark.needs_extension


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("stand_in"))


def choose(**given):
    layer = {
        "cell": "gru", "dtype": torch.bfloat16, "hidden_size": 512, "batch": 32, "directions": 1, "ragged": False,
        "train": True, "device": torch.device("cpu"),
    }  # fmt: skip
    return forms.choose(*(layer | given).values())


@pytest.mark.parametrize(
    ("given", "forward", "backward"),
    (
        ({}, "cluster", "cluster"),
        ({"train": False}, "cluster", None),
        ({"hidden_size": 1024}, "grid", "grid"),
        ({"hidden_size": 256, "batch": 64, "cell": "lstm"}, "cluster", "cluster"),
        ({"hidden_size": 256, "directions": 2, "dtype": torch.float32}, "cluster", "cluster"),
        # by the same estimates: torch's own loop
        ({"batch": 4096}, None, None),
        ({"hidden_size": 1024, "batch": 1024}, None, None),
        ({"hidden_size": 8192}, None, None),
        ({"dtype": torch.float64}, None, None),
    ),
)
def test_the_choice_of_an_h200(library, given, forward, backward):
    with in_place_of_the_cpu(library, None):
        found = choose(**given)
    assert (found.forward, found.backward) == (forward, backward), found.why


def test_why_a_layer_is_torchs(library):
    with in_place_of_the_cpu(library, None):
        assert "us in torch's own loop" in choose(batch=4096).why
        assert "does not stay on this GPU's chip" in choose(hidden_size=8192).why
        assert "float64" in choose(dtype=torch.float64).why
    with in_place_of_the_cpu(library, "torch"):
        assert "asked for" in choose().why
    with in_place_of_the_cpu(library, "cluster", cluster=1):
        assert choose().forward is None
    with in_place_of_the_cpu(library, "warp"), pytest.raises(ValueError, match="form: expected None"):
        choose()


def test_other_multiprocessors_are_left_alone(library, monkeypatch):
    monkeypatch.setattr(forms, "max_sms", 64)
    with in_place_of_the_cpu(library, "grid") as gpu:
        assert choose(hidden_size=256, batch=64).why == "grid, 2 x 32 blocks of 8 units"
        make_layer("gru", 5, 256)(draw(2, 64, 5))
    assert [(plan.groups, plan.blocks) for _, plan in gpu.plans] == [(2, 32)]


def test_a_layer_takes_what_was_chosen(library):
    """All of torch.nn's layer: a stack, dropout, two directions."""
    layer = make_layer("lstm", 5, 40, 2, bidirectional=True, dropout=0.5)
    with in_place_of_the_cpu(library, None) as gpu:
        output, _ = layer(draw(3, 4, 5).requires_grad_())
        output.sum().backward()
    assert [form for form, _ in gpu.plans] == ["cluster"] * 4


def test_without_a_library_a_layer_goes_step_by_step(monkeypatch):
    monkeypatch.setattr(loop, "library", lambda: (None, "there is none"))
    forms._choose.cache_clear()
    try:
        assert choose() == (None, None, "there is none")
    finally:
        forms._choose.cache_clear()


def test_a_refused_launch_says_what_was_asked(library):
    with in_place_of_the_cpu(library, "grid") as gpu:
        plan = gpu.plan
        gpu.plan = lambda *args: (plan(*args)[0], loop.Plan(1, 1, 8, 0, 0))
        with pytest.raises(
            RuntimeError, match=r"grid form .* forward: gru, torch.float32, hidden_size=40, 3 steps of 4"
        ):
            make_layer("gru", 5, 40)(draw(3, 4, 5))


def test_the_choice_is_a_constant_to_the_compiler(library):
    def chosen(x):
        form = choose(batch=forms.rounded(x.size(1))).forward
        return x + 1 if form == "cluster" else x

    with in_place_of_the_cpu(library, None):
        for dynamic in (False, True):
            torch._dynamo.reset()
            compiled = torch.compile(chosen, fullgraph=True, backend="eager", dynamic=dynamic)
            assert torch.equal(compiled(torch.zeros(3, 5, 5)), torch.ones(3, 5, 5))
