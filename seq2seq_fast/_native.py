"""Loads the compiled extension, and keeps the reason when it cannot be loaded."""

import torch

try:
    from . import _build as build
except ImportError:
    build = None


def _load():
    """The extension and None, or None and why there is none, in one sentence."""
    if build is None:
        return None, "the C++ extension is not built: these sources were never installed"
    if build.REASON is not None:
        return None, f"the C++ extension is not built: {build.REASON}"
    # torch's C++ interface changes from one minor version to the next: loading might crash, not fail
    if build.TORCH.split(".")[:2] != torch.__version__.split(".")[:2]:
        return None, (
            f"the C++ extension is built for torch {build.TORCH} and this is torch {torch.__version__}: "
            "reinstall seq2seq_fast with pip's --no-build-isolation"
        )
    try:
        from . import _C
    except ImportError as error:
        return None, f"the C++ extension does not load ({error}): reinstall seq2seq_fast"
    return _C, None


extension, reason = _load()
