"""The engines that are compared: each as its own documentation says, from the same weights."""

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from seq2seq_fast import nn

from .cases import COMPILED, Shape


def layers(cell: str, shape: Shape) -> tuple[torch.nn.Module, torch.nn.Module]:
    """torch.nn's layer and ours, with the same weights."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, cell)(shape.I, shape.H, shape.L, bidirectional=shape.D == 2)
    ours = getattr(nn, cell)(shape.I, shape.H, shape.L, bidirectional=shape.D == 2)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def draw(shape: Shape) -> Tensor:
    return torch.randn(shape.T, shape.B, shape.I)


def inference(layer: torch.nn.Module, x: Tensor) -> Callable[[], list[Tensor]]:
    def run():
        with torch.inference_mode():
            return [layer(x)[0]]

    return run


def training(layer: torch.nn.Module, x: Tensor) -> Callable[[], list[Tensor]]:
    """The gradients of the output's sum, for every parameter and for the input."""
    x = x.detach().requires_grad_()
    wanted = (x, *layer.parameters())

    def run():
        output = layer(x)[0]
        return [output, *torch.autograd.grad(output.sum(), wanted)]

    return run


def why_no_compile(shape: Shape) -> str | None:
    return None if shape in COMPILED else "not one of the few shapes that are compiled: it takes long"


def compiled(layer: torch.nn.Module) -> torch.nn.Module:
    torch._dynamo.config.allow_rnn = True
    torch._dynamo.reset()
    return torch.compile(layer)


def why_no_onnxruntime() -> str | None:
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} not installed: pip install seq2seq_fast[bench]" if missing else None


# ONNX stacks the gates in another order: z r h, and i o f c
ONNX_GATES = {"GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2), "RNN": (0,)}


def onnxruntime(layer: torch.nn.Module, cell: str, shape: Shape, x: Tensor, threads: int) -> Callable[[], list[Tensor]]:
    """The layer as ONNX nodes, one for each layer of the stack, under ONNX Runtime."""
    import onnx
    import onnxruntime as ort
    from onnx import helper, numpy_helper

    def reordered(weight: Tensor):
        blocks = weight.detach().chunk(len(ONNX_GATES[cell]))
        return torch.cat([blocks[g] for g in ONNX_GATES[cell]])

    nodes, tensors, source = [], [], "input"
    for k in range(shape.L):
        suffixes = [f"l{k}"] + ([f"l{k}_reverse"] if shape.D == 2 else [])
        weights = [[reordered(getattr(layer, f"{kind}_{s}")) for s in suffixes] for kind in ("weight_ih", "weight_hh")]
        bias = [torch.cat([reordered(getattr(layer, f"bias_{kind}_{s}")) for kind in ("ih", "hh")]) for s in suffixes]
        for name, value in (("W", weights[0]), ("R", weights[1]), ("B", bias)):
            tensors.append(numpy_helper.from_array(torch.stack(value).numpy(), f"{name}{k}"))
        attributes = {"hidden_size": shape.H, "direction": "bidirectional" if shape.D == 2 else "forward"}
        if cell == "GRU":
            attributes["linear_before_reset"] = 1
        nodes.append(helper.make_node(cell, [source, f"W{k}", f"R{k}", f"B{k}"], [f"Y{k}"], **attributes))
        # (T, D, B, H) to (T, B, D*H)
        nodes.append(helper.make_node("Transpose", [f"Y{k}"], [f"P{k}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"P{k}", "rows"], [f"O{k}"]))
        source = f"O{k}"
    tensors.append(numpy_helper.from_array(torch.tensor([0, 0, -1]).numpy(), "rows"))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        cell,
        [value("input", onnx.TensorProto.FLOAT, [shape.T, shape.B, shape.I])],
        [value(source, onnx.TensorProto.FLOAT, [shape.T, shape.B, shape.D * shape.H])],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    # its threads may spin while it runs, not on into somebody else's turn
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {"input": x.numpy()}
    return lambda: [torch.from_numpy(session.run(None, feed)[0])]
