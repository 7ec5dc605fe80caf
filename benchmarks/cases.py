"""The grid: what is measured, as data."""

from dataclasses import dataclass

CELLS = ("GRU", "RNN", "LSTM")
MODES = ("inference", "training")


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

    def flops(self, cell: str, mode: str) -> int:
        """Multiply-adds that must be done, counted twice: the first step has no state yet to multiply with.
        A training step does three times the products of an inference."""
        gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[cell]
        per_row = sum(
            self.T * (self.I if layer == 0 else self.D * self.H) + (self.T - 1) * self.H for layer in range(self.L)
        )
        return 2 * self.B * self.D * gates * self.H * per_row * (3 if mode == "training" else 1)

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

SHAPES = PROGRAMS + GRID
QUICK = PROGRAMS + tuple(s for s in GRID if (s.H in (2, 64, 256) and s.T <= 100) or (s.H == 512 and s.B == 32))
EMPTY_CALL = Shape(2, 1, 2, 2)
# torch.compile unrolls the time loop and compiles each of these for 5 to 40 s: a handful
COMPILED = (*(s for s in SHAPES if s.name in ("history", "squares", "decoding one word")), Shape(10, 8, 64, 64))
