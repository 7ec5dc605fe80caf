"""Nothing of the GPU's loop spills, and no kernel grows unnoticed: nvcc, no GPU."""

import pytest
from resources import ARCHITECTURES, DTYPES, compiled, nvcc, release, table

pytestmark = pytest.mark.skipif(nvcc() is None, reason="nvcc is not installed")


def test_the_table_is_whole_and_nothing_in_it_spills():
    assert len(table()) == len(ARCHITECTURES) * len(DTYPES) * 16
    for row in table():
        assert (row["stack"], row["spilled"]) == (0, 0), row


# one dtype each, since all nine pairs take minutes
@pytest.mark.parametrize(
    ("dtype", "architecture"), (("float16", "sm_80"), ("float32", "sm_90a"), ("bfloat16", "sm_100"))
)
def test_kernels_take_what_the_table_says(dtype, architecture):
    found = compiled(dtype, architecture)
    for row in found:
        assert (row["stack"], row["spilled"]) == (0, 0), row
    if release() == "13.0":
        assert found == [row for row in table() if (row["dtype"], row["target"]) == (dtype, architecture)]
