"""The grid: what is measured, as data."""

import re
from dataclasses import dataclass, replace

CELLS = ("GRU", "RNN", "LSTM")
MODES = ("inference", "training")
DTYPES = ("float32", "float64", "bfloat16", "float16")
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}


@dataclass(frozen=True)
class Shape:
    """T steps, B batch, I input, H hidden, L layers, D directions."""

    T: int
    B: int
    I: int  # noqa: E741
    H: int
    L: int = 1
    D: int = 1
    name: str = ""

    def __str__(self) -> str:
        label = f"T{self.T} B{self.B} I{self.I} H{self.H} L{self.L} D{self.D}"
        return f"{self.name}: {label}" if self.name else label

    @classmethod
    def parse(cls, label: str) -> "Shape":
        """What `str` gives, back again; I is H, and L and D are 1, where the label leaves them out."""
        name, _, sizes = label.rpartition(": ")
        found = {letter: int(size) for letter, size in re.findall(r"([TBIHLD])([1-9]\d*)\b", sizes)}
        if not {"T", "B", "H"} <= found.keys() or len(found) != len(sizes.split()):
            raise ValueError(f"expected a shape such as 'T10 B32 I64 H128 L1 D1', got {label!r}")
        return cls(**{"I": found["H"]} | found, name=name)

    def flops(self, cell: str, mode: str) -> int:
        """Multiply-adds that must be done, counted twice: the first step has no state yet to multiply with.
        A training step does three times the products of an inference."""
        per_row = sum(
            self.T * (self.I if layer == 0 else self.D * self.H) + (self.T - 1) * self.H for layer in range(self.L)
        )
        return 2 * self.B * self.D * GATES[cell] * self.H * per_row * (3 if mode == "training" else 1)

    def bytes(self, cell: str, mode: str) -> int:
        """What must be moved in float32: input, weights and output, in training their gradients too. A first step has
        no state to read `weight_hh` for; its gradient is written all the same."""
        ends = self.T * self.B * (self.I + self.D * self.H)
        rows = self.D * GATES[cell] * self.H
        weight_hh = rows * self.L * self.H
        others = rows * (self.I + (self.L - 1) * self.D * self.H + 2 * self.L)
        read = ends + others + (weight_hh if self.T > 1 else 0)
        return 4 * (read + (ends + others + weight_hh if mode == "training" else 0))

    @property
    def saturates(self) -> bool:
        """Large enough to be held against the machine's peak."""
        return self.H >= 512 and self.B >= 32


PROGRAMS = (
    Shape(7, 32, 5, 16, name="history"),
    Shape(10, 32, 256, 512, 2, name="plain RNN"),
    Shape(10, 32, 128, 256, 3, name="subsequence"),
    Shape(2, 16, 2, 2, name="squares"),
    Shape(8, 64, 128, 256, D=2, name="pronunciation"),
    Shape(1, 1, 128, 256, name="decoding one word"),
)

GRID = (
    Shape(2, 1, 2, 2),
    Shape(10, 16, 2, 2),
    Shape(200, 1, 2, 2),
    Shape(1, 1, 16, 16),
    Shape(50, 8, 16, 16),
    Shape(200, 128, 16, 16),
    Shape(1, 32, 64, 64),
    Shape(50, 1, 64, 64),
    Shape(10, 8, 64, 64),
    Shape(10, 128, 64, 64),
    Shape(200, 32, 64, 64),
    Shape(50, 8, 64, 64, 3),
    Shape(50, 8, 64, 64, 1, 2),
    Shape(10, 32, 40, 128),
    Shape(200, 8, 128, 128),
    Shape(50, 32, 128, 128, 2, 2),
    Shape(1, 32, 256, 256),
    Shape(100, 1, 256, 256),
    Shape(50, 8, 256, 256),
    Shape(50, 128, 80, 256),
    Shape(50, 8, 256, 256, 2, 2),
    Shape(1, 1, 512, 512),
    Shape(100, 1, 512, 512),
    Shape(50, 32, 512, 512),
    Shape(10, 128, 512, 512),
    Shape(1, 32, 1024, 1024),
    Shape(20, 1, 1024, 1024),
    Shape(10, 32, 1024, 1024),
    Shape(10, 128, 1024, 1024),
)

# one size at a time around a middle, for the curves of time against T, B and H
MIDDLE = Shape(16, 16, 128, 128)
SWEEPS = {
    "T": tuple(replace(MIDDLE, T=T) for T in (1, 4, 16, 64, 256)),
    "B": tuple(replace(MIDDLE, B=B) for B in (1, 4, 16, 64, 256)),
    "H": tuple(replace(MIDDLE, I=H, H=H) for H in (8, 32, 128, 512, 1024)),
}
SHAPES = PROGRAMS + GRID
QUICK = PROGRAMS + tuple(s for s in GRID if (s.H in (2, 64, 256) and s.T <= 100) or (s.H == 512 and s.B == 32))
SETS = {
    "programs": PROGRAMS,
    "grid": GRID,
    "sweep": tuple(dict.fromkeys(shape for sweep in SWEEPS.values() for shape in sweep)),
    "quick": QUICK,
}
EMPTY_CALL = Shape(2, 1, 2, 2)
# torch.compile unrolls the time loop and compiles each of these for 5 to 40 s: a handful
COMPILED = (*(s for s in SHAPES if s.name in ("history", "squares", "decoding one word")), Shape(10, 8, 64, 64))


@dataclass(frozen=True)
class Case:
    """One thing that is measured."""

    cell: str
    mode: str
    shape: Shape
    dtype: str = "float32"
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.cell} {self.mode} {self.shape} {self.dtype} {self.device}"
