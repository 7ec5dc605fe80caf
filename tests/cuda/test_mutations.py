"""A bug planted in csrc/cuda shows on the stand-in: what its tests can be trusted to find."""

import multiprocessing
import shutil

import pytest
import torch
from cases import draw, make_hx, make_layer
from error_rule import assert_as_accurate, run
from oracle import Oracle
from stand_in import CSRC, build, in_place_of_the_cpu
from test_cuda_loop import packed, ragged

# name: file, then what is replaced by what
MUTATIONS = {
    "no barrier before the flag": (
        "exchange.h",
        "    __syncthreads();\n    ++turn;\n    if (threadIdx",
        "    ++turn;\n    if (threadIdx",
    ),
    "a flag one turn early": ("exchange.h", "flags + group.rank, turn)", "flags + group.rank, turn + 1)"),
    "a flag that never comes": ("exchange.h", "if (threadIdx.x == 0) store", "if (threadIdx.x == 0 && turn < 3) store"),
    "a wait for too few blocks": ("exchange.h", "block < last_block; block", "block + 1 < last_block; block"),
    "one state in place of two": (
        "exchange.h",
        *("state * plan.state_bytes", "0"),
        *("((turn - 1) & 1) * plan.state_bytes", "0"),
    ),
    "no barrier before the pieces": (
        "exchange.h",
        "void publish(int rows) {\n    __syncthreads();",
        "void publish(int rows) {",
    ),
    "no barrier of the cluster at the start": ("exchange.h", "    cluster_arrive();\n    cluster_wait();\n", ""),
    "a block that ends while others write to it": ("exchange.h", "finish() { cluster_wait(); }", "finish() {}"),
    "one state in place of two in a cluster": (
        "exchange.h",
        *("state * state_bytes", "0"),
        *("((turn - 1) & 1) * state_bytes", "0"),
    ),
    "no barrier before the sums": ("persistent.h", "      __syncthreads();\n      pass.compute", "      pass.compute"),
    "no barrier between turns": (
        "persistent.h",
        "      if (row + plan.rows_a_turn < rows)\n        __syncthreads();\n      else\n",
        "      if (row + plan.rows_a_turn >= rows)\n",
    ),
    "rows 8 to 15 in the place of 0 to 7": ("product.h", "+ in_tile / 8) * 4", "+ 1 - in_tile / 8) * 4"),
    "a part of the sum left out": ("product.h", "part < plan.parts", "part + 1 < plan.parts || part == 0"),
    "weights of the shared memory mixed up": (
        "product.h",
        "return extra[(i * columns + column) * 32]",
        "return extra[column * 32]",
    ),
    "no last turn of the way back": ("backward.h", "return steps + 1", "return steps"),
    "rows that have just ended forgotten": (
        "backward.h",
        "return now.active > before.active ? now.active : before.active;",
        "return now.active;",
    ),
    "the state of the wrong step": ("backward.h", "reserve_at(next.row", "reserve_at(now.row"),
}


def cases():
    """Each form; several blocks, turns and groups; weights in shared memory; ragged rows both ways."""
    for cell, hidden, batch, form, sms in (
        ("gru", 33, 40, "grid", 4),
        ("gru", 33, 20, "cluster", 132),
        ("lstm", 170, 3, "grid", 3),
    ):
        layer = make_layer(cell, 5, hidden, bidirectional=cell == "gru", dtype=torch.bfloat16)
        input = draw(4, batch, 5, dtype=torch.bfloat16)
        if cell == "gru":
            input = packed(input, ragged(4, batch))
        yield layer, input, make_hx(layer, batch, torch.bfloat16), form, sms


@pytest.fixture(scope="module")
def expected():
    results = []
    for layer, input, hx, form, sms in cases():
        exact = run(Oracle(layer), input, hx)
        results.append((layer, input, hx, form, sms, run(layer, input, hx), exact))
    return results


def holds(library, expected):
    """Passes every comparison, under fair schedules and unfair ones."""
    torch.set_num_threads(1)
    for seed in (0, 1, 3, 4):
        for layer, input, hx, form, sms, theirs, exact in expected:
            with in_place_of_the_cpu(library, form, seed=seed, sms=sms):
                ours = run(layer, input, hx)
            assert_as_accurate(ours, theirs, exact)


def survives(folder, expected, file=None, *replacements) -> bool:
    csrc = shutil.copytree(CSRC, folder / "csrc")
    if file:
        text = (csrc / "cuda" / file).read_text()
        for old, new in zip(replacements[::2], replacements[1::2], strict=True):
            assert old in text, f"{file} has changed: {old!r} is not in it"
            text = text.replace(old, new)
        (csrc / "cuda" / file).write_text(text)
    library = build(folder, csrc, ("-O0", "-DBFLOAT16_ONLY"))
    # in a process of its own: a planted bug may take that with it
    process = multiprocessing.get_context("fork").Process(target=holds, args=(library, expected))
    process.start()
    process.join(100)
    assert process.exitcode is not None, "neither passes nor fails"
    return process.exitcode == 0


def test_without_a_bug_all_is_well(tmp_path, expected):
    assert survives(tmp_path, expected)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_bug_is_found(tmp_path, expected, name):
    assert not survives(tmp_path, expected, *MUTATIONS[name])
