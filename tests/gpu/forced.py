"""A form of the persistent loop in place of the chosen one."""

from contextlib import contextmanager
from unittest import mock

import pytest
import torch

from seq2seq_fast.cuda import forms, loop

FORMS = loop.FORMS
DEVICE = "cuda"


@contextmanager
def forced(form: str, max_sms: int = 0):
    """Layers take `form`; where it is not built, or the GPU has no such launch, the test is skipped and says why."""
    library, why_not = loop.library()
    if library is None:
        pytest.skip(why_not)
    if form == "cluster" and library.limits(torch.device(DEVICE, 0)).cluster == 1:
        pytest.skip("clusters of blocks need a GPU of sm_90 or later")
    with mock.patch.object(forms, "form", form), mock.patch.object(forms, "max_sms", max_sms):
        yield
