"""ONNX Runtime and OpenVINO, on one ONNX model."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..cases import Case
from .onnx_model import onnx_model


def onnxruntime(layer: torch.nn.Module, case: Case, x: Tensor, threads: int) -> Callable[[], list]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    # its threads may spin while it runs, not on into somebody else's turn
    options.add_session_config_entry("session.force_spinning_stop", "1")
    model = onnx_model(layer, case.cell, case.shape)
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feed = {"input": x.numpy()}
    return lambda: session.run(None, feed)


def openvino(layer: torch.nn.Module, case: Case, x: Tensor, threads: int) -> Callable[[], list]:
    import openvino as ov

    core = ov.Core()
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        # by itself it takes bfloat16 where the processor has it
        "INFERENCE_PRECISION_HINT": "f32",
    }
    model = core.read_model(model=onnx_model(layer, case.cell, case.shape))
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    inputs = [x.numpy()]
    return lambda: list(request.infer(inputs, share_inputs=True, share_outputs=True).values())
