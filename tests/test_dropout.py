"""Dropout between layers: torch's mask from torch's seed."""

import pytest
import torch
from cases import draw, make_layer, pack, twin
from error_rule import run


def results(layer, input, seed):
    torch.manual_seed(seed)
    return run(layer, input), torch.rand(3)


@pytest.mark.parametrize("num_layers", (2, 3))
@pytest.mark.parametrize("bidirectional", (False, True), ids=("one_way", "both_ways"))
@pytest.mark.parametrize("form", ("time_first", "batch_first", "packed", "unbatched"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_same_mask_as_torch(cell, num_layers, bidirectional, form, dtype):
    layer = make_layer(
        cell,
        5,
        16,
        num_layers,
        dropout=0.4,
        bidirectional=bidirectional,
        batch_first=form == "batch_first",
        dtype=dtype,
    )
    input = draw(4, 3, 5, dtype=dtype)
    if form == "unbatched":
        input = input[:, 0]
    elif form == "packed":
        input = pack(input, (2, 4, 1))
    ours, after_ours = results(layer, input, 7)
    theirs, after_theirs = results(twin(layer), input, 7)
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], msg=lambda m, name=name: f"{name}: {m}")
    assert torch.equal(after_ours, after_theirs), "the generator was drawn from as often as torch.nn draws"
    assert not torch.allclose(ours["output"], results(layer, input, 8)[0]["output"]), "another seed, another mask"


def test_everything_dropped(cell):
    layer = make_layer(cell, 5, 7, 2, dropout=1.0)
    ours, theirs = run(layer, draw(4, 3, 5)), run(twin(layer), draw(4, 3, 5))
    torch.testing.assert_close(ours, theirs)
    assert not ours["d_weight_ih_l1"].any()


def test_none_in_eval(cell):
    layer = make_layer(cell, 5, 7, 3, dropout=0.5)
    plain = make_layer(cell, 5, 7, 3)
    plain.load_state_dict(layer.state_dict())
    layer.eval()
    before = torch.get_rng_state()
    torch.testing.assert_close(run(layer, draw(4, 3, 5)), run(plain, draw(4, 3, 5)), rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_padding_stays_zero_under_dropout(cell):
    layer = make_layer(cell, 5, 7, 2, dropout=0.5, bidirectional=True)
    output, _ = layer(draw(4, 3, 5), lengths=[2, 4, 0])
    assert not output[2:, 0].any()
    assert not output[:, 2].any()
    assert output[:2, 0].any()
