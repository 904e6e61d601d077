"""The layer check finds each kind of offence; a check that finds nothing would pass any tree."""
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "check_layers.py"


CLEAN = "layers: no upward include, no private header of another folder\n"


def check(root):
    result = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)
    return result.returncode, result.stdout


def tree(tmp_path, name, text):
    path = tmp_path / "palimpsest" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return tmp_path


@pytest.mark.parametrize("name, text, said", [
    ("base/a.cpp", '#include "palimpsest/ops/abn.h"\n', "layer 'base' must not include 'palimpsest/ops/abn.h'"),
    ("kernels/cpu/a.cpp", "#include <ATen/ATen.h>\n", "layer 'kernels' must not include 'ATen/ATen.h'"),
    ("models/a.cpp", '# include "palimpsest/train/loss.h"\n', "layer 'models' must not include"),
    ("nn/a.h", "#include <torch/torch.h>\n", "a header must not include torch/torch.h"),
    ("nn/a.h", "  using namespace std;\n", "a header must not say 'using namespace'"),
    ("kernels/cuda/a.cu", "#include <c10/core/Device.h>\n", "CUDA sources never see libtorch headers"),
    ("kernels/cuda/a.cu", "#include <cuda_runtime.h>\n", "only palimpsest/kernels/cuda/device/nvcc may include 'cuda_runtime.h'"),
    ("kernels/cuda/device/a.cuh", "#include <cuda_fp16.h>\n", "only palimpsest/kernels/cuda/device/nvcc may include 'cuda_fp16.h'"),
    ("kernels/cuda/a.cuh", "using namespace std;\n", "a header must not say 'using namespace'"),
    ("kernels/cpu/a.cpp", '#include "tests/support/compare.h"\n', "the library must not include 'tests/support/compare.h'"),
    ("train/a.cpp", '#include "palimpsest/data/generated/streets.h"\n', "streets.h' is private to its folder"),
    ("data/a.cpp", '#include "palimpsest/data/generated/streets.h"\n', "streets.h' is private to its folder"),
    ("helpers/a.h", "\n", "a folder that is no layer"),
    ("ops/abn/a.cpp", '#include "palimpsest/ops/max_pool/native.h"\n', "'palimpsest/ops/max_pool/native.h' is private to its folder"),
    ("ops/common/a.h", '#include "palimpsest/ops/abn/native.h"\n', "is private to its folder"),
    ("ops/abn.h", '#include "palimpsest/ops/abn/native.h"\n', "is private to its folder"),
    ("nn/a.cpp", '#include "palimpsest/ops/common/layout.h"\n', "is private to its folder"),
    ("kernels/cpu/simd/a.h", '#include "palimpsest/kernels/cpu/abn/table.h"\n', "is private to its folder"),
])
def test_each_offence_is_named(tmp_path, name, text, said):
    status, output = check(tree(tmp_path, name, text))
    assert status == 1
    assert said in output


def test_nvccs_folder_includes_cuda_and_a_kernel_the_platform(tmp_path):
    tree(tmp_path, "kernels/cuda/device/nvcc/cuda_platform.cuh", "#include <cuda_runtime.h>\n")
    (tmp_path / "palimpsest/kernels/cuda/device/platform.cuh").write_text('#include "cuda_platform.cuh"\n')
    assert check(tmp_path) == (0, CLEAN)


def test_downward_includes_pass(tmp_path):
    status, output = check(tree(tmp_path, "train/a.cpp", '#include "palimpsest/nn/model.h"\n#include <torch/torch.h>\n'))
    assert (status, output) == (0, CLEAN)


@pytest.mark.parametrize("name, included", [
    ("ops/abn/a.cpp", "ops/abn/native.h"),
    ("ops/abn/a.cpp", "ops/common/layout.h"),
    ("ops/abn/a.cpp", "ops/convolution/functional.h"),
    ("ops/abn/a.cpp", "kernels/cuda/abn.h"),
    ("kernels/cpu/dispatch.h", "kernels/cpu/abn/table.h"),
    ("kernels/cpu/abn/a.h", "kernels/cpu/simd/vector.h"),
    ("kernels/cpu/abn/a.h", "kernels/formulas/activation.h"),
])
def test_shared_rooms_own_folders_and_headers_for_siblings_pass(tmp_path, name, included):
    assert check(tree(tmp_path, name, f'#include "palimpsest/{included}"\n')) == (0, CLEAN)
