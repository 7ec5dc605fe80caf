"""A result of the benchmarks with something in every section, made up."""

from benchmarks import cases, summary


def pairs(ratio: float, spread: float = 0.05, ours: float = 1e-4) -> dict:
    return {"baseline": ratio * ours, "ours": ours, "ratio": ratio, "ratio_low": ratio * (1 - spread),
            "ratio_high": ratio * (1 + spread), "pairs": 41}  # fmt: skip


def case(cell: str, mode: str, shape: cases.Shape, ratio: float, **more) -> dict:
    ours = 1e-5 + 2 * shape.flops(cell, mode) / 200e9
    return {
        "cell": cell, "mode": mode, "shape": str(shape), "dtype": "float32", "device": "cpu",
        "first_call": {"baseline": 1e-3, "ours": 5e-4},
        "error": {"baseline": [3e-7, 2e-6], "ours": [2e-7, 0.0]} if mode == "training" else
                 {"baseline": [3e-7], "ours": [2e-7]},
        "torch_nn": pairs(ratio, ours=ours),
        "jax": {"skipped": "jax not installed"},
        **more,
    }  # fmt: skip


def result() -> dict:
    kinds = [(cell, mode) for cell in cases.CELLS for mode in cases.MODES]
    measured = [case(*kind, shape, 1 + n) for kind in kinds for n, shape in enumerate(cases.PROGRAMS)]
    measured[0]["onnxruntime"] = pairs(0.5)
    measured[5]["onnxruntime"] = pairs(0.9, spread=0.3)
    measured[1]["torch_nn"] = pairs(0.99, spread=0.3)
    wrong = case("GRU", "inference", cases.GRID[0], 1.0, wrong="result 0: error 1.0e+00, torch.nn's 1.0e-07")
    del wrong["torch_nn"]
    measured.append(wrong)
    layer = {"name": "encoder", "kind": "GRU", "path": "fused", "before": 2e-4, "after": 1e-4}
    return {
        "machine": {
            "processor": "A Processor", "instructions": "avx2", "threads": 2, "processors": [0, 1], "load": 3.0,
            "gpu": None, "peak_gflops": 200.0, "cache_gbs": 100.0, "memory_gbs": 20.0, "torch": "2.13.0",
            "onnxruntime": "1.31.1", "openvino": "none", "jax": "none", "python": "3.11.7", "commit": "1234567",
            "date": "2026-01-02T03:04",
        },
        "summaries": summary.summaries(measured),
        "not_reached": 4,
        "empty_call": {mode: pairs(4.0) for mode in cases.MODES},
        "lengths": [{"cell": "GRU", "shape": "T5 B4 I3 H6 L1 D1", "input": "padded",
                     "inference": 2.0, "training": 3.0}],
        "projection": [{"shape": "T5 B4 I3 H6 L1 D1", "proj_size": "3", "inference": 2.0, "training": 3.0}],
        "bfloat16": [{"cell": "GRU", "shape": "T5 B4 I3 H6 L1 D1", "inference": 2.0, "training": 3.0}],
        "fresh": [{"cell": "GRU", "shape": "T5 B4 I3 H6 L1 D1", "torch.nn MB": 20.0, "ours MB": 10.0,
                   "torch.nn first call ms": 2.0, "ours first call ms": 1.0}],
        "programs": [
            {"name": "<history>", "layers": [layer],
             "modes": {"inference": pairs(2.0), "training": {"wrong": "result 0"}}},
        ],
        "cases": measured,
        "sweep": [case(*kind, shape, 2.0) for kind in kinds for shape in cases.SETS["sweep"]],
    }  # fmt: skip
