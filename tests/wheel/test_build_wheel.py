"""scripts/build_wheel on the library of this build: nothing is compiled again. The second version of torch is a stand-in."""
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release")).resolve()
LIBRARY = BUILD / "python/libpalimpsest_ops.so"
SCRIPT = ROOT / "scripts/build_wheel"
OURS = ".".join(torch.__version__.split(".")[:2])


@pytest.fixture(scope="module")
def script():
    loader = importlib.machinery.SourceFileLoader("build_wheel", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("build_wheel", loader))
    loader.exec_module(module)
    os.environ["PATH"] = f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
    return module


@pytest.fixture(scope="module")
def wheel(script, tmp_path_factory):
    """A wheel with the operators for the torch of this environment, and for a later one."""
    return script.pack({OURS: LIBRARY, "2.98": LIBRARY}, tmp_path_factory.mktemp("dist"))


def small_library(folder, name, *arguments, text=""):
    (folder / "source.cpp").write_text(f'extern const char text[] = "{text}";\n')
    path = folder / name
    subprocess.run(["c++", "-shared", "-fPIC", "-nostdlib", "-o", path, folder / "source.cpp", *arguments], check=True)
    return path


# ---- the library


def test_the_library_needs_torch_and_the_runtime_alone(script):
    assert list(script.faults(LIBRARY)) == []
    needed = {name for tag, name in script.dynamic(LIBRARY) if tag == "NEEDED"}
    assert {"libtorch_cpu.so", "libc10.so", "libgomp.so.1"} <= needed


def test_a_run_path_is_found(script):
    fault, = script.faults(BUILD / "libpalimpsest_ops.so")
    assert fault.startswith("it has the run path '/")


def test_other_libraries_are_found_and_those_of_cuda_with_cuda_alone(script, tmp_path):
    others = [small_library(tmp_path, name, f"-Wl,-soname,{name}") for name in ("libpng16.so.16", "libcudart.so.13")]
    library = small_library(tmp_path, "libours.so", "-Wl,--no-as-needed", *others)
    png, cuda = (f"it needs {path.name}, which neither torch nor the C++ runtime has" for path in others)
    assert list(script.faults(library)) == [png, cuda]
    assert list(script.faults(library, cuda=True)) == [png]


def test_a_path_of_this_machine_is_found(script, tmp_path):
    library = small_library(tmp_path, "libours.so", text=f"{tmp_path}/ops/abn.cpp")
    assert list(script.faults(library, folders={tmp_path})) == [f"it names the file '{tmp_path}/ops/abn.cpp' of this machine"]
    assert list(script.faults(library, folders={ROOT})) == []


# ---- the tag


@pytest.mark.parametrize("versions, glibc", [
    ([], 17),
    (["GLIBC_2.2.5", "GLIBC_2.14", "GOMP_4.5", "OMP_1.0", "GCC_3.0"], 17),
    (["GLIBC_2.32", "GLIBC_2.29", "GLIBCXX_3.4.21", "CXXABI_1.3.9"], 32),
    (["GLIBC_2.32", "GLIBCXX_3.4.29"], 34),
    (["GLIBC_2.27", "GLIBCXX_3.4", "CXXABI_1.3.13"], 34),
    (["GLIBCXX_3.4.33", "GCC_12.0.0"], 39),
])
def test_the_tag_is_the_oldest_system_with_the_symbols(script, versions, glibc):
    assert script.oldest_glibc(versions) == glibc


@pytest.mark.parametrize("version", ["GLIBCXX_3.4.99", "GLIBC_ABI_DT_RELR", "GLIBC_PRIVATE"])
def test_unknown_symbol_versions_have_no_tag(script, version):
    with pytest.raises(script.Failure, match=version):
        script.oldest_glibc(["GLIBC_2.17", version])


# ---- the version


def test_every_file_names_the_same_version():
    named = {re.search(pattern, (ROOT / file).read_text(), re.M)[1] for file, pattern in (
        ("CMakeLists.txt", r"^project\(palimpsest VERSION ([0-9.]+)"),
        ("python/palimpsest/__init__.py", r'^__version__ = "(.+)"$'),
        ("python/inplace_abn_dropin/pyproject.toml", r'^version = "(.+)"$'))}
    assert len(named) == 1


# ---- the wheel


def test_one_wheel_holds_both_libraries_the_licence_and_true_records(wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "wheel", "unpack", wheel, "--dest", tmp_path], check=True)  # compares every digest
    version = re.search(r"project\(palimpsest VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    tree, info = tmp_path / f"palimpsest-{version}", f"palimpsest-{version}.dist-info"
    for minor in (OURS, "2.98"):
        assert (tree / f"palimpsest/lib/torch-{minor}/libpalimpsest_ops.so").read_bytes() == LIBRARY.read_bytes()
    assert (tree / info / "licenses/LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    metadata = (tree / info / "METADATA").read_text()
    assert f"\nVersion: {version}\n" in metadata and "\nLicense-Expression: BSD-3-Clause\n" in metadata
    tag = re.fullmatch(rf"palimpsest-{version}-(py3-none-manylinux_2_\d\d_\w+)\.whl", wheel.name)[1]
    said = (tree / info / "WHEEL").read_text()
    assert f"\nTag: {tag}\n" in said and "\nRoot-Is-Purelib: false\n" in said


def test_a_wheel_for_gpus_has_a_version_of_its_own(script, tmp_path):
    wheel = script.pack({OURS: LIBRARY}, tmp_path, "cu130")
    with zipfile.ZipFile(wheel) as archive:
        name, = (name for name in archive.namelist() if name.endswith("METADATA"))
        assert re.search(r"^Version: [0-9.]+\+cu130$", archive.read(name).decode(), re.M) and "+cu130-py3-none-" in wheel.name


def test_the_wheel_is_installed_chosen_refused_and_uninstalled(wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env/bin/python"
    site = next((tmp_path / "env/lib").glob("python*/site-packages"))
    (site / "torch.pth").write_text(str(pathlib.Path(torch.__file__).parents[1]))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PALIMPSEST_", "PYTHON"))}

    def files():
        return {path.relative_to(tmp_path) for path in (tmp_path / "env").rglob("*")}

    def run(code):
        return subprocess.run([python, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)

    before = files()
    pip = [sys.executable, "-m", "pip", "--python", python, "-q"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", wheel], env=environment, check=True)
    used = run("import torch, palimpsest; print(palimpsest.__file__)\n"
               "palimpsest.nn.BatchNormAct(3)(torch.randn(2, 3, 4, 4)).sum().backward()\n"
               "print([line.split()[-1] for line in open('/proc/self/maps') if 'libpalimpsest_ops' in line][0])")
    assert used.stdout.splitlines() == [str(site / "palimpsest/__init__.py"),
                                        str(site / f"palimpsest/lib/torch-{OURS}/libpalimpsest_ops.so")], used.stderr
    newer = run("import torch; torch.__version__ = '2.99.0+cu150'; import palimpsest")
    assert newer.stderr.splitlines()[-1] == (
        f"ImportError: palimpsest has no operators for torch 2.99, but for {OURS}, 2.98: pip install 'torch==2.98.*', or build "
        "palimpsest for torch 2.99: pip install . in a clone")
    subprocess.run([*pip, "uninstall", "-y", "palimpsest"], env=environment, check=True)
    assert files() == before


def test_the_source_distribution_has_all_that_a_build_needs(script, tmp_path):
    with tarfile.open(script.hook("build_sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "LICENSE", "PKG-INFO", "cmake/FindLibtorch.cmake", "palimpsest/ops/abn/op.cpp", "pyproject.toml",
            "python/build_backend.py", "python/palimpsest/__init__.py"} <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "build", "dist", ".venv", ".git/"))]


# ---- the command


def test_the_command_packs_the_operators_of_a_build(tmp_path):
    said = subprocess.run([SCRIPT, "--build", BUILD, "--output", tmp_path], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    wheel, = tmp_path.iterdir()
    assert re.fullmatch(rf"{re.escape(str(wheel))}: \d\.\d MB, for torch {OURS}\n", said.stdout)


def test_a_wheel_that_is_too_large_is_not_written(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "MOST_BYTES", 100_000)
    monkeypatch.setattr(script, "faults", lambda *_: [])
    monkeypatch.setattr(sys, "argv", ["build_wheel", "--build", str(BUILD), "--output", str(tmp_path)])
    (tmp_path / "stage").mkdir()
    with pytest.raises(script.Failure, match=r"the wheel has \d\.\d MB, at most 0 MB"):
        script.make(script.arguments(), tmp_path / "stage")
    assert not list(tmp_path.glob("*.whl"))


def test_nvcc_is_found_where_the_build_looks_for_it(script, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").write_text("#!/bin/sh\n")
    (tmp_path / "bin/nvcc").chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert script.has_nvcc()


def test_a_missing_nvcc_is_a_missing_tool(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "has_nvcc", lambda: False)
    monkeypatch.setattr(script, "make", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["build_wheel", "--cuda"])
    assert script.main() == 2
    assert capsys.readouterr().err.startswith("build_wheel: --cuda needs nvcc 12.8 or later")


@pytest.mark.parametrize("arguments, says", [
    (["--torch", "2.10"], "--torch needs a version such as 2.15 or 2.15.0, 2.11 or later, got '2.10'"),
    (["--torch", "newest"], "got 'newest'"),
    (["--torch", "2.15", "--torch", "2.15.0"], "--torch names a minor version of torch twice: 2.15 2.15.0"),
    (["--build", "docs"], "--build needs a build folder of this project, got 'docs'"),
])
def test_wrong_arguments_are_named(arguments, says):
    said = subprocess.run([SCRIPT, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 2 and says in said.stderr
