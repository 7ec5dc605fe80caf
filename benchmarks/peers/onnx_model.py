"""A recurrent layer as ONNX nodes, one for each layer of the stack: what ONNX Runtime and OpenVINO are given."""

import torch
from torch import Tensor

from ..cases import Shape

# ONNX stacks the gates in another order: z r h, and i o f c
GATES = {"GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2), "RNN": (0,)}


def onnx_model(layer: torch.nn.Module, cell: str, shape: Shape) -> bytes:
    import onnx
    from onnx import helper, numpy_helper

    def reordered(weight: Tensor) -> Tensor:
        blocks = weight.detach().chunk(len(GATES[cell]))
        return torch.cat([blocks[g] for g in GATES[cell]])

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
    return model.SerializeToString()
