"""How fast the layers are, against torch.nn, torch.compile and ONNX Runtime. `python -m benchmarks --help`."""
