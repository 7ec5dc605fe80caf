"""The options of the suite; `python -m benchmarks` passes them on."""

from . import cases


def pytest_addoption(parser):
    group = parser.getgroup("seq2seq_fast benchmarks")
    group.addoption("--quick", action="store_true", help="a small fixed part of the grid")
    group.addoption("--cells", default=",".join(cases.CELLS))
    group.addoption("--modes", default=",".join(cases.MODES))
    group.addoption("--peers", default="compile,onnxruntime")
    group.addoption("--threads", type=int, default=2)
    group.addoption("--seconds", type=float, default=1.0)
