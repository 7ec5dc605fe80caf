"""DistributedDataParallel and FSDP2 on two gloo processes under torchrun: the losses of torch.nn."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import LAYERS
from torch.testing import assert_close

PROGRAM = Path(__file__).with_name("ddp_program.py")


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
@pytest.mark.parametrize("wrapper", ("ddp", "fsdp"))
def test_trains_as_torch_nn_does(wrapper, tmp_path):
    log, file = tmp_path / "log.txt", tmp_path / "losses.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with log.open("w") as output:
        launcher = subprocess.Popen(
            [*torchrun, str(PROGRAM), wrapper, str(file)],
            stdout=output,
            stderr=subprocess.STDOUT,
            # gloo would look up the host's name otherwise, which a machine without a network cannot
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            start_new_session=True,
        )
        try:
            code = launcher.wait(timeout=180)
        except subprocess.TimeoutExpired:
            code = "none: it still ran after 180 s"
        finally:
            # and what it started, which outlives it where it was stopped
            with contextlib.suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()
    assert code == 0, log.read_text()[-3000:]

    losses = json.loads(file.read_text())
    assert set(losses) == set(LAYERS)
    for by_library in losses.values():
        assert_close(by_library["seq2seq_fast"], by_library["torch.nn"], rtol=1e-5, atol=1e-7)
        assert len(set(by_library["seq2seq_fast"])) == 4
