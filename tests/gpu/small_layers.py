"""Every form, cell and dtype of the persistent loop on small layers, forward and backward, ragged rows among them.

What compute-sanitizer watches (test_gpu_sanitizer.py); its own results are not looked at.
"""

import itertools

import torch
from cases import LAYERS, make_hx, make_layer
from error_rule import run
from forced import DEVICE, FORMS, forced

from seq2seq_fast.cuda import loop

if __name__ == "__main__":
    library, why_not = loop.library()
    if library is None:
        raise SystemExit(why_not)
    clusters = library.limits(torch.device(DEVICE, 0)).cluster > 1
    for form, cell, dtype in itertools.product(FORMS if clusters else FORMS[:1], LAYERS, loop.DTYPES):
        with forced(form):
            for hidden_size in (17, 128):
                layer = make_layer(cell, 5, hidden_size, bidirectional=True, dtype=dtype).to(DEVICE)
                input, hx = torch.randn(4, 18, 5, device=DEVICE, dtype=dtype), make_hx(layer, 18, dtype)
                hx = tuple(h.to(DEVICE) for h in hx) if isinstance(hx, tuple) else hx.to(DEVICE)
                run(layer, input, hx)
                run(layer, input, hx, lengths=torch.arange(18, device=DEVICE) % 5)
    torch.cuda.synchronize()
