"""A person's own model before and after `accelerate`."""

import pytest
import torch

pytest.importorskip("pytest_benchmark")
pytest.importorskip("benchmarks", reason="these are the tests of a checkout, and this is a copy without benchmarks")

from benchmarks import model, programs, timing


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.LSTM(3, 5, batch_first=True)
        self.head = torch.nn.Linear(5, 2)

    def forward(self, x, scale=1.0):
        output, states = self.rnn(x)
        return {"scores": self.head(output) * scale, "states": states, "length": x.size(1)}


class SinglePrecision(Tagger):
    def forward(self, x):
        return super().forward(x.float())


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    """A pair of calls in the place of the clock's many."""

    def once(baseline, ours, seconds):
        baseline(), ours()
        return timing.summary([(2.0, 1.0)] * 5)

    monkeypatch.setattr(timing, "pairs", once)
    monkeypatch.setattr(model, "ROUNDS", 2)


@pytest.mark.parametrize("inputs", [torch.randn(2, 4, 3), (torch.randn(2, 4, 3), 2.0), {"x": torch.randn(2, 4, 3)}])
def test_a_model_is_measured_whole_and_by_layer(inputs):
    found = model.measure("tagger", Tagger(), inputs, seconds=0.0)
    assert [(mode, t["ratio"]) for mode, t in found["modes"].items()] == [("inference", 2.0), ("training", 2.0)]
    assert [(layer["name"], layer["kind"]) for layer in found["layers"]] == [("rnn", "LSTM"), ("head", "Linear")]
    assert all(layer["before"] > 0 and layer["after"] > 0 for layer in found["layers"])


@pytest.mark.needs_extension
def test_a_layer_says_what_serves_it():
    rnn, head = model.measure("tagger", Tagger(), torch.randn(2, 4, 3), seconds=0.0)["layers"]
    assert rnn["path"].startswith("fused (cpu,")
    assert head["path"] == "torch.nn"


def test_attention_is_one_layer():
    model_of_two = torch.nn.Sequential(torch.nn.Linear(4, 4), programs.Transformer(4, 2, 1))
    found = model.measure("attention", model_of_two, torch.randn(2, 3, 4), seconds=0.0)
    assert [layer["name"] for layer in found["layers"]] == ["0", "1.attention.0", "1.wide.0", "1.narrow.0"]


def test_a_model_may_be_one_layer_and_frozen():
    found = model.measure("layer", torch.nn.GRU(3, 5).requires_grad_(False), torch.randn(4, 2, 3), seconds=0.0)
    assert list(found["modes"]) == ["inference"]
    assert [layer["name"] for layer in found["layers"]] == ["the model"]


@pytest.mark.parametrize("kind", [Tagger, SinglePrecision])
def test_a_wrong_model_is_never_timed(monkeypatch, kind):
    def spoilt(made):
        with torch.no_grad():
            made.head.bias += 0.1
        return made

    monkeypatch.setattr(model, "accelerate", spoilt)
    monkeypatch.setattr(timing, "pairs", lambda *_: pytest.fail("timed"))
    found = model.measure("tagger", kind(), torch.randn(2, 4, 3), seconds=0.0)
    assert all("wrong" in t for t in found["modes"].values())


def test_a_model_that_takes_no_float64_is_held_against_itself():
    found = model.measure("tagger", SinglePrecision(), torch.randn(2, 4, 3), seconds=0.0)
    assert all("wrong" not in t for t in found["modes"].values())


@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda program: program.__name__)
def test_the_programs_give_the_same(program):
    torch.manual_seed(0)
    found = model.measure(program.__name__, *program(), seconds=0.0)
    assert {mode: t.get("wrong") for mode, t in found["modes"].items()} == {"inference": None, "training": None}


@pytest.mark.parametrize("name", ["torch.nn", "torch.nn:Nothing", "no_such_module:made", ":made"])
def test_what_is_no_factory_is_refused(name):
    with pytest.raises(ValueError, match="model: expected module:factory"):
        model.load(name)


def test_a_factory_that_gives_something_else_is_refused():
    with pytest.raises(ValueError, match=r"to give \(model, inputs\), got OrderedDict"):
        model.load("collections:OrderedDict")


def test_a_factory_is_found_by_name():
    made, inputs = model.load("benchmarks.programs:squares")
    assert isinstance(made, programs.Squares)
    assert inputs.shape == (16, 2, 2)
