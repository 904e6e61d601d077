"""The layer check finds each kind of offence; a check that finds nothing would pass any tree."""
import pathlib
import subprocess

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "check_layers"
CLEAN = "layers: no upward include, no private header of another folder, no name or folder of tests out of place\n"


def check(root):
    result = subprocess.run([SCRIPT, root], capture_output=True, text=True)
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


def put(root, name, text="", mode=0o644):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


@pytest.mark.parametrize("name, text, said", [
    ("tests/ops/abn/values_test.cpp", "", "tests/ops/abn: there is no folder palimpsest/ops/abn"),
    ("tests/kernels/cpu/abn/table_test.cpp", "", "tests/kernels/cpu: there is no folder palimpsest/kernels/cpu"),
    ("tests/helpers/a.h", "", "tests/helpers: a folder of tests that is no layer"),
    ("tests/io/copy.cpp", "int main() {}\n", "tests/io/copy.cpp: defines main, so its name must end in _program"),
    ("tests/io/main.cpp", "\nint main(int argc, char** argv) {\n", "tests/io/main.cpp: defines main"),
    ("tests/io/image.cpp", "\nTEST(Image, IsRead) {}\n", "tests/io/image.cpp: holds tests, so its name must end in _test"),
    ("tests/io/image_case.cpp", "TYPED_TEST(Image, IsRead) {}\n", "must end in _test"),
    ("tests/io/image_program.cpp", "TEST_P(Image, IsRead) {}\n", "must end in _test"),
    ("tests/scripts/tidy_test.py", "def test_it():\n    pass\n", "must begin with test_"),
])
def test_folders_and_names_of_tests(tmp_path, name, text, said):
    (tmp_path / "palimpsest/io").mkdir(parents=True)
    (tmp_path / "palimpsest/kernels/abn").mkdir(parents=True)
    (tmp_path / "palimpsest/ops").mkdir()
    put(tmp_path, name, text)
    status, output = check(tmp_path)
    assert status == 1
    assert said in output


def test_tests_that_mirror_the_source_pass(tmp_path):
    (tmp_path / "palimpsest/ops/abn").mkdir(parents=True)
    for name, text in [("ops/abn/values_test.cpp", "TEST(Abn, IsRight) {}\n"), ("ops/abn_case.cpp", "// int main()\n"),
                       ("ops/copy_program.cpp", "int main() {}\n"), ("support/main.cpp", "int main() {}\n"),
                       ("support/cuda_emulator/fiber.cpp", ""), ("package/consumer/CMakeLists.txt", ""),
                       ("ops/test_operators.py", "def test_it():\n"), ("ops/conftest.py", "def cases():\n")]:
        put(tmp_path, "tests/" + name, text)
    assert check(tmp_path) == (0, CLEAN)


@pytest.mark.parametrize("name, text, mode, said", [
    ("scripts/check.py", "#!/usr/bin/env python3\n", 0o755, "scripts/check.py: a command has no suffix"),
    ("benchmarks/pages/pages.sh", "#!/bin/sh\n", 0o755, "benchmarks/pages/pages.sh: a command has no suffix"),
    ("scripts/check", "#!/usr/bin/env python3\n", 0o644, "scripts/check: a file without a suffix is a command"),
    ("scripts/check", "import sys\n", 0o755, "scripts/check: a file without a suffix is a command"),
])
def test_suffixes_of_scripts(tmp_path, name, text, mode, said):
    put(tmp_path, name, text, mode)
    status, output = check(tmp_path)
    assert status == 1
    assert said in output


def test_commands_modules_and_lists_pass(tmp_path):
    put(tmp_path, "scripts/check", "#!/usr/bin/env python3\n", 0o755)
    put(tmp_path, "scripts/passed.py", "import sys\n")
    put(tmp_path, "scripts/requirements.txt", "torch\n")
    assert check(tmp_path) == (0, CLEAN)
