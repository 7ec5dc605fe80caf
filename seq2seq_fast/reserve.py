"""The shape of the reserve, what rnn_layer_train saves for rnn_layer_backward; csrc/recurrence.h has the same."""

# tensors of (rows, hidden) that backward reads for each step: the state h', and what csrc/cells/*.h saves; one more is
# what a projection takes
SLOTS = {"gru": 5, "lstm": 6, "rnn_tanh": 1, "rnn_relu": 1}
ALIGN = 16
LONG = 32


def reserve_shape(cell: str, directions: int, rows: int, hidden: int, projected: bool = False) -> tuple[int, ...]:
    """(D, rows, slots, padded H); csrc/recurrence.h says why slots are padded, and how."""
    blocks = (hidden + ALIGN - 1) // ALIGN
    return directions, rows, SLOTS[cell] + projected, (blocks if blocks < LONG else blocks | 1) * ALIGN
