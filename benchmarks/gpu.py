"""The operators on a GPU against torch's own: `python -m benchmarks.gpu` prints the table and keeps it in results/.

Each case is checked against torch before it is timed, with CUDA events, in pairs that alternate.
"""

import datetime
import itertools
import json
import pathlib
import re
import subprocess
import sys
from functools import partial

import torch
from tabulate import tabulate
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from seq2seq_fast import attention_ops, ops  # noqa: F401 - they register the operators on CUDA

from . import timing

PAIRS = 21
SAMPLE = 5e-3  # seconds a sample lasts at least
CELLS = {"gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell, "rnn_tanh": torch.nn.RNNCell}
LAYERS = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM, "rnn_tanh": torch.nn.RNN}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# batch, heads, queries, keys, width
SHAPES = ((32, 8, 20, 20, 32), (16, 8, 128, 128, 64), (4, 16, 1024, 1024, 64), (64, 8, 1, 256, 64))


def seconds(run, repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats


def pairs(theirs, ours) -> timing.Pairs:
    """Warmed by a call, which compiles; then in turn, as often as a sample needs."""
    seconds(theirs, 3), seconds(ours, 3)
    repeats = [max(1, round(SAMPLE / seconds(run, 3))) for run in (theirs, ours)]
    times = [tuple(map(seconds, (theirs, ours), repeats)) for _ in range(PAIRS)]
    return timing.summary(times)


def cell_cases():
    """A step, as a decoder takes it, and a layer: (name, dtype, against what, its call, ours, results in float64)."""
    op = torch.ops.seq2seq_fast.rnn_layer.default
    for dtype in DTYPES:
        for cell, kind in CELLS.items():
            for batch, size in ((1, 512), (64, 512), (256, 1024)):
                torch.manual_seed(0)
                module = kind(size, size).to("cuda", dtype)
                x, h = torch.randn(2, batch, size, device="cuda", dtype=dtype)
                hx = (h, h) if cell == "lstm" else (h,)
                weights = list(module.parameters())
                ours = partial(op, x, hx[0], *(hx[1:] or (None,)), weights, None, None, cell, False)
                theirs = partial(module, x, hx if cell == "lstm" else h)
                exact = kind(size, size).to("cuda", torch.float64)
                exact.load_state_dict(module.state_dict())
                wide = exact(x.double(), tuple(s.double() for s in hx) if cell == "lstm" else h.double())
                yield f"{cell} step {batch}x{size}", dtype, "torch.nn", theirs, ours, wide
                layer = LAYERS[cell](size, size).to("cuda", dtype)
                layer_weights = list(layer.parameters())
                x = torch.randn(20, batch, size, device="cuda", dtype=dtype)
                ours = partial(op, x, None, None, layer_weights, None, None, cell, False)
                exact = LAYERS[cell](size, size).to("cuda", torch.float64)
                exact.load_state_dict(layer.state_dict())
                yield f"{cell} layer 20x{batch}x{size}", dtype, "torch.nn", partial(layer, x), ours, exact(x.double())


def eager(query, key, value):
    """Attention as seq2seq code writes it."""
    return (query @ key.mT / query.size(-1) ** 0.5).softmax(-1) @ value


def with_backend(backend, *qkv):
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(*qkv)


def attention_cases():
    op = torch.ops.seq2seq_fast.attention.default
    for dtype in DTYPES:
        for shape in SHAPES:
            batch, heads, queries, keys, width = shape
            torch.manual_seed(0)
            qkv = [torch.randn(batch, heads, n, width, device="cuda", dtype=dtype) for n in (queries, keys, keys)]
            ours = partial(op, *qkv, [], None, None, False, 0.0, width**-0.5, "none", "zeros")
            exact = eager(*(x.double() for x in qkv))
            name = "attention " + "x".join(map(str, shape))
            yield name, dtype, "eager", partial(eager, *qkv), ours, exact
            for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
                            SDPBackend.CUDNN_ATTENTION):  # fmt: skip
                yield name, dtype, f"SDPA {backend.name.lower()}", partial(with_backend, backend, *qkv), ours, exact


def tensors(result) -> list[torch.Tensor]:
    """Flat: torch gives a cell's state once, our operators as output and as state."""
    return torch.utils._pytree.tree_leaves(result)


def measure(theirs, ours, exact) -> dict:
    try:
        wanted = tensors(theirs())
    except RuntimeError as error:
        return {"not run": f"torch: {str(error).splitlines()[0]}"}
    exact, got = tensors(exact), tensors(ours())
    if len(got) == len(wanted) + 1:
        got = got[1:]
    problem = timing.wrong(got, wanted, exact)
    if problem is not None:
        return {"not run": problem}
    found = pairs(theirs, ours)
    return {"torch us": found.baseline * 1e6, "ours us": found.ours * 1e6, "ratio": found.ratio}


def main() -> int:
    if not torch.cuda.is_available():
        sys.exit("benchmarks.gpu: torch.cuda.is_available() is False: there is no GPU, or this torch has no CUDA")
    import triton

    rows = []
    with torch.no_grad():
        for name, dtype, peer, theirs, ours, exact in itertools.chain(cell_cases(), attention_cases()):
            case = {"case": name, "dtype": str(dtype).removeprefix("torch."), "against": peer}
            rows.append({**case, **measure(theirs, ours, exact)})
            print(rows[-1], flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "commit": commit.stdout.strip(),
        "date": datetime.datetime.now().isoformat(timespec="minutes"),
    }
    gpu = re.sub(r"[^a-z0-9]+", "-", machine["gpu"].lower()).strip("-")
    path = pathlib.Path(__file__).parent / "results" / f"{gpu}-{machine['date'][:10]}.json"
    path.write_text(json.dumps({"machine": machine, "results": rows}, indent=1) + "\n")
    print(tabulate(rows, headers="keys", floatfmt=".2f", tablefmt="github"))
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
