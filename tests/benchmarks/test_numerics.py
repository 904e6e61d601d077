"""The errors in docs/results/numerics.json, which docs/numerics.md shows: complete, and still true."""
import json
import math
import os
import pathlib
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from activations import activations, can_save  # noqa: E402

BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))
DOCUMENTED = ROOT / "docs/results/numerics.json"

# A later measurement may exceed the page by this factor and term: in 16 bits one more value may be rounded across a kink,
# and another instruction set adds in another order.
FACTOR, ORDER_OF_SUMS = 3, 2e-6


def strategies_of(activation):
    strategies = {"standard", "checkpoint", "checkpoint_normalized", "store_y"}
    if can_save(activation, "output"):
        return strategies | {"inplace_1", "inplace_2"}
    return strategies | {"inplace_bit"} if can_save(activation, "output_bit") else strategies


torch.ops.load_library(str(BUILD / "libpalimpsest_ops.so"))
PAIRS = {(activation, strategy) for activation in activations() for strategy in strategies_of(activation)}


def rows_of(path):
    return {(row["activation"], row["strategy"], row["data"], row["dtype"]): row
            for row in json.loads(path.read_text())["rows"]}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("numerics") / "numerics.json"
    result = subprocess.run([str(BUILD / "bench_numerics"), "--check", "--json", str(path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    return rows_of(path)


def test_every_pair_is_measured_on_every_kind_of_data_in_every_dtype(measured):
    kinds = ("ordinary", "small weight", "large mean", "large bias")
    assert set(measured) == {(*pair, data, dtype) for pair in PAIRS for data in kinds for dtype in ("f32", "f16", "bf16")}
    assert all(math.isfinite(row[what]) for row in measured.values() for what in ("z", "dx", "dweight"))


def test_no_error_is_larger_than_the_page_says(measured):
    documented = rows_of(DOCUMENTED)
    assert set(documented) == set(measured)
    worse = [(key, what, row[what], documented[key][what])
             for key, row in measured.items() if key[1] != "standard"  # nothing is claimed about libtorch's layers
             for what in ("z", "dx", "dweight") if not row[what] <= FACTOR * documented[key][what] + ORDER_OF_SUMS]
    assert not worse
