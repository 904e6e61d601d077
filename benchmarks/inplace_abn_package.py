"""The inplace_abn package, the source of the idea, as an opponent."""
import importlib
import os
import pathlib
import shutil
import sys


def layer(folder, *arguments):
    """The package's function as layer(x, weight, bias, mean, var). It is imported from `folder`, which must hold the
    compiled part too. `arguments`: the arguments after the tensors. Raises ImportError if the import fails."""
    sys.path.insert(0, str(folder))
    try:
        function = importlib.import_module("inplace_abn.functions").inplace_abn
        importlib.import_module("inplace_abn._backend")  # the compiled part, which a checkout lacks
    finally:
        sys.path.pop(0)
    found = pathlib.Path(sys.modules["inplace_abn"].__file__).absolute().parent
    if found.parent != pathlib.Path(folder).absolute():
        raise ImportError(f"Python found {found} instead")
    return lambda *tensors: function(*tensors, *arguments)


def build(folder, into, cuda):
    """Compiles the sources of a checkout, with its CUDA kernels if `cuda`, so that layer() finds the result; the checkout
    does not change. Does nothing if the package is compiled already. Raises ImportError with the compiler's first error."""
    from torch.utils import cpp_extension  # imported here because it looks for a compiler

    folder = pathlib.Path(folder)
    if list((folder / "inplace_abn").glob("_backend*.so")):
        return
    sources = sorted(str(path) for path in (folder / "src").glob("*") if path.suffix == ".cpp" or (cuda and path.suffix == ".cu"))
    if not sources:
        raise ImportError(f"'{folder}' has neither a compiled package nor its sources in src")
    if cuda and shutil.which("nvcc"):
        os.environ.setdefault("CUDA_HOME", str(pathlib.Path(shutil.which("nvcc")).resolve().parents[1]))
    flags = ["-O3"] + (["-DWITH_CUDA=1"] if cuda else [])
    pathlib.Path(into).mkdir(parents=True, exist_ok=True)
    try:
        module = cpp_extension.load("_backend", sources, extra_include_paths=[str(folder / "include")], extra_cflags=flags,
                                    extra_cuda_cflags=flags, with_cuda=cuda, build_directory=str(into))
    except (RuntimeError, OSError) as error:
        said = [line for line in str(error).splitlines() if "error" in line] or str(error).splitlines() or ["it said nothing"]
        raise ImportError(f"its sources do not compile: {said[0]}") from error
    sys.modules["inplace_abn._backend"] = module
