"""What loading takes besides the weights themselves, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints.tiny import make_tiny_llama
from zerokl.checkpoints.packaged_model import packaged_model

SCRIPT = """
import sys
from zerokl import checkpoints, models
from zerokl.config import Config

def kilobytes(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

checkpoint = checkpoints.open(sys.argv[1])
before = kilobytes("VmRSS")
model = models.load(checkpoint, Config())
print((kilobytes("VmHWM") - before) * 1024 / model.weight_bytes)
"""


pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the measure is Linux's")


def settle(path: Path) -> None:
    """A file just written may lie in the system's cache in large pieces, which are mapped whole: read it anew."""
    opened = os.open(path, os.O_RDONLY)
    os.fsync(opened)
    os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(opened)


def peak_in_weights(path: Path) -> float:
    """Most memory that loading added, in times of the packed weights."""
    script = [sys.executable, "-c", SCRIPT, str(path)]
    return float(subprocess.run(script, check=True, capture_output=True, text=True).stdout)


def test_a_mapped_file_is_let_go_of_as_it_is_read(tmp_path: Path) -> None:
    """48 MB of bfloat16, which are packed as they are: with the file's pages kept, the peak would be above 2."""
    wide = {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 3, "torch_dtype": "bfloat16"}
    assert peak_in_weights(make_tiny_llama(tmp_path / "m", 3, **wide)) < 1.9


@pytest.mark.model
@pytest.mark.nightly  # what the system maps beside a page that is read differs from file system to file system
def test_smollm2_takes_a_fifth_more_than_its_weights_at_most() -> None:
    path = packaged_model()
    if path is None:
        pytest.skip("the packaged model is not in the cache; `zerokl serve` fetches it")
    settle(path)
    assert peak_in_weights(path) <= 1.2
