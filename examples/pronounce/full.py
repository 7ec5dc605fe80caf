"""Training toward the published error: many epochs on one engine, the best of them kept."""

import math
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure
from tqdm import tqdm

from .exam import BEAMS, ErrorRates, Exam, beam
from .report import boxed
from .training import Learner
from .words import Examples

EPOCHS = 30
PUBLISHED = ErrorRates(phonemes=0.0545, words=0.2355)
SOURCE = "bidirectional LSTM, arXiv 1506.00196, on an older dictionary and another split"


def train(learner: Learner, examples: Examples, validation: Exam, test: Exam, batch_size: int, output: Path) -> None:
    """Trains for EPOCHS or until Ctrl-C, then takes the exam with the weights of the best epoch.

    Writes the weights of the best epoch so far beside `output`, and to `output` the error rates by epoch.
    """
    steps = math.ceil(len(examples) / batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(learner.optimizer, EPOCHS * steps)
    checkpoint = output.with_suffix(".pt")
    history: list[ErrorRates] = []
    print(f"{EPOCHS} epochs of {steps:,} steps; Ctrl-C ends the training and keeps the best epoch.")
    print("epoch   loss   phoneme error   word error   (on the validation words)")
    try:
        for epoch in range(1, EPOCHS + 1):
            for _ in tqdm(range(steps), desc=f"epoch {epoch}", leave=False, disable=None):
                learner.step()
                schedule.step()
            history.append(validation.mark(learner.model))
            mean_loss = sum(learner.losses[-steps:]) / steps
            print(f"{epoch:5}  {mean_loss:.3f}  {history[-1].phonemes:14.2%}  {history[-1].words:11.2%}")
            if history[-1].phonemes == min(errors.phonemes for errors in history):
                torch.save(learner.model.state_dict(), checkpoint)
            draw(history, output)
            if epoch == 1:
                print(f"       all {EPOCHS} epochs take about {EPOCHS * learner.seconds / 60:,.0f} minutes")
    except KeyboardInterrupt:
        if not history:
            raise SystemExit("\nStopped before the end of the first epoch: there is nothing to keep.") from None
    learner.model.load_state_dict(torch.load(checkpoint))
    rows = [
        [name, f"{errors.phonemes:.2%}", f"{errors.words:.2%}"]
        for name, errors in (
            ("greedy", test.mark(learner.model)),
            (f"{BEAMS} beams", test.mark(learner.model, beam)),
            (f"published: {SOURCE}", PUBLISHED),
        )
    ]
    print(f"\nTest words, best of {len(history)} epochs, {learner.seconds / 60:.0f} minutes of training:")
    print(boxed(rows, ["", "phoneme error", "word error"]))
    print(f"Weights in {checkpoint}, error rates by epoch in {output}.")


def draw(history: list[ErrorRates], path: Path) -> None:
    """A PNG: error rates by epoch, with the published ones as dotted lines."""
    with matplotlib.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        drawing = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
        axes = drawing.subplots()
        for name, colour in (("words", "#3b6ea5"), ("phonemes", "#d1495b")):
            rates = [100 * getattr(errors, name) for errors in history]
            axes.plot(range(1, len(rates) + 1), rates, color=colour, marker="o", markersize=3, label=name)
            axes.axhline(100 * getattr(PUBLISHED, name), color=colour, linestyle=":", label=f"{name}, published")
        axes.set(title="Errors on the validation words", xlabel="epoch", ylabel="wrong [%]", ylim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False)
        drawing.savefig(path)
