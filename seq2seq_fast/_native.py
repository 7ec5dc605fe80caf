"""Loads the compiled extension, and keeps the reason when it cannot be loaded."""

try:
    from . import _C as extension

    reason = None
except ImportError as error:
    extension = None
    reason = f"the C++ extension is not built ({error}); install gcc and reinstall seq2seq_fast to build it"
