"""Learns to pronounce English words on torch.nn and on seq2seq_fast: the same losses, in less time.

Trains one encoder-decoder model on each engine in turn, on the CMU Pronouncing Dictionary, from the same
initial weights on the same batches. Prints a table and draws the losses and speeds.
"""

import argparse
import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

import torch
from pronounce import full, report
from pronounce.exam import BEAMS, Exam, beam, decode_in_turn, greedy
from pronounce.fused import FusedPronouncer
from pronounce.model import Pronouncer
from pronounce.training import Learner, race
from pronounce.words import LETTERS, PHONEMES, Examples, read_dictionary, split

from seq2seq_fast import _native
from seq2seq_fast.functional import greedy_search

ENGINES = {"torch.nn": partial(Pronouncer, torch.nn), "seq2seq_fast": FusedPronouncer}
QUICK = {"cell": "gru", "batch_size": 32, "embedding_size": 64, "hidden_size": 128, "layers": 1}
FULL = {"cell": "lstm", "batch_size": 128, "embedding_size": 256, "hidden_size": 256, "layers": 2}
LEARNING_RATE = 2e-3
FLOAT64_STEPS = 500


def main(arguments: list[str] | None = None) -> None:
    parser = argument_parser()
    args = parser.parse_args(arguments)
    for name, value in (FULL if args.full else QUICK).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.hidden_size % 2:
        parser.error(f"argument --hidden-size: expected an even number, got {args.hidden_size}")
    dictionary = read_dictionary()
    count = args.words or len(dictionary)
    if not 2 * args.batch_size <= count <= len(dictionary):
        least = f"from twice the batch size, {2 * args.batch_size:,},"
        parser.error(f"argument --words: expected {least} to the dictionary's {len(dictionary):,}, got {count:,}")

    torch.set_num_threads(args.threads)
    training, validation, test = split(dictionary, count, args.seed)
    examples = Examples(training)
    if _native.reason:
        print(f"seq2seq_fast has only torch's own layers to offer here, so expect no gain: {_native.reason}.")
    if args.full:
        learner = make_learner("seq2seq_fast", args, examples, dropout=0.3)
        exams = Exam(validation, args.batch_size), Exam(test, args.batch_size)
        full.train(learner, examples, *exams, args.batch_size, args.output)
    else:
        compare(args, examples, Exam(test, args.batch_size))


def compare(args: argparse.Namespace, examples: Examples, exam: Exam) -> None:
    """Trains and decodes on both engines; prints the table and draws the figure."""
    learners = [make_learner(engine, args, examples) for engine in ENGINES]
    parameters = sum(p.numel() for p in learners[0].model.parameters())
    title = f"{args.cell.upper()} encoder-decoder, {parameters:,} parameters, threads: {args.threads}"
    length = f"{args.steps:,} steps" if args.steps else f"{args.minutes:g} min"
    print(f"{title}; {len(examples):,} pronunciations; {length} on each engine, in turn.")
    for learner in learners:
        learner.warm_up(next(examples.forever(args.batch_size, args.seed)))
    race(learners, seconds=60 * args.minutes, steps=args.steps)
    if not all(learner.losses for learner in learners):
        raise SystemExit("Stopped before both engines made a step: there is nothing to compare.")

    print(f"Pronouncing {len(exam.references):,} words that were not in the training ...")
    models = [learner.model for learner in learners]
    errors = [exam.mark(model) for model in models]
    with_beams = exam.mark(models[1], beam)
    models[0].load_state_dict(models[1].state_dict())
    decoding = {
        "greedy": decode_in_turn(models, exam.batches, greedy),
        f"{BEAMS} beams": decode_in_turn(models, exam.batches[::BEAMS], beam),
        "a word a call": decode_in_turn(models, exam.alone(500), greedy),
    }
    results = [
        report.Result(learner, of_learner, {name: speeds[i] for name, (speeds, _) in decoding.items()})
        for i, (learner, of_learner) in enumerate(zip(learners, errors, strict=True))
    ]
    in_float64 = make_learner("torch.nn", args, examples)
    in_float64.engine += " in float64"
    in_float64.model.double()
    for _ in range(min(FLOAT64_STEPS, report.steps_both_made(*learners))):
        in_float64.step()
    print(report.comparison(results))
    print(f"With {BEAMS} beams: {with_beams}.")
    alike = ", ".join(f"{same:.2%} {name}" for name, (_, same) in decoding.items())
    print(f"With the same weights in both, so many words are pronounced alike: {alike}.\n")
    print(report.agreement(*learners, in_float64))
    print("Training magnifies every rounding; the last column shows how far torch.nn drifts from itself.")
    report.figure(results, alignment(models[1], exam), title, args.output)
    print(f"Drawn in {args.output}.")


def alignment(model: FusedPronouncer, exam: Exam) -> report.Alignment:
    """What the model attends to in the longest of the words that can still be read in a small figure."""
    batch = next(batch for batch in exam.alone(len(exam.references)) if batch.letters.size(1) <= 12)
    found = model.search(greedy_search, batch.letters, batch.lengths, return_alphas=True)
    letters = [LETTERS[letter] for letter in batch.letters[0]]
    said = [PHONEMES[phoneme] for phoneme in found.tokens[0, : found.lengths[0]]]
    return report.Alignment(letters, said, found.alphas[0, : len(said)])


def make_learner(engine: str, args, examples: Examples, *, dropout=0.0) -> Learner:
    """From the same arguments, the same initial weights and the same batches on either engine."""
    torch.manual_seed(args.seed)
    sizes = args.embedding_size, args.hidden_size, args.layers
    model = ENGINES[engine](args.cell, *sizes, dropout)
    return Learner(engine, model, examples.forever(args.batch_size, args.seed), LEARNING_RATE)


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    time = parser.add_mutually_exclusive_group()
    time.add_argument("--minutes", type=number(float, 0.01, 1440), default=2, help="of training on each engine (2)")
    time.add_argument("--steps", type=number(int, 1, 10**6), help="of training on each engine, instead of minutes")
    time.add_argument(
        "--full",
        action="store_true",
        help=f"{full.EPOCHS} epochs of a larger model on seq2seq_fast alone, toward the published error; "
        "takes hours, and Ctrl-C keeps the best epoch",
    )
    option("--cell", choices=("gru", "lstm"), help=defaults("cell"))
    option("--batch-size", type=number(int, 1, 4096), metavar="B", help=defaults("batch_size"))
    option("--embedding-size", type=number(int, 1, 4096), metavar="E", help=defaults("embedding_size"))
    option("--hidden-size", type=number(int, 2, 4096), metavar="H", help="even " + defaults("hidden_size"))
    option("--layers", type=number(int, 1, 16), metavar="L", help="of encoder and decoder " + defaults("layers"))
    option(
        "--words",
        type=number(int, 1, 10**6),
        metavar="N",
        help="so many of the dictionary, drawn by seed (all)",
    )
    option("--seed", type=number(int, 0, 2**32 - 1), default=0, help="of words, weights and batches (0)")
    cores = os.cpu_count() or 1
    threads = min(torch.get_num_threads(), cores)
    option("--threads", type=number(int, 1, cores), default=threads, metavar="N", help=f"({threads})")
    # a string: of no other default would argparse check the type, and so make the folder
    option(
        "--output", type=writable_png, default="out/pronunciation.png", metavar="PNG", help="the figure (%(default)s)"
    )
    return parser


def defaults(name: str) -> str:
    return f"({QUICK[name]}; full: {FULL[name]})"


def number(kind: type, least: float, most: float):
    """A type for argparse: a number from `least` to `most`."""

    def parse(text: str):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            sort = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"expected {sort} from {least:,} to {most:,}, got {text!r}")
        return value

    return parse


def writable_png(text: str) -> Path:
    """A type for argparse: a .png file in a folder that can be written; makes the folder."""
    path = Path(text)
    if path.suffix != ".png":
        raise argparse.ArgumentTypeError(f"expected a name that ends in .png, got {text!r}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"can't write {text!r}: {error.strerror}") from None
    return path


if __name__ == "__main__":
    main()
