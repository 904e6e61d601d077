"""The interface of the package inplace_abn, computed by palimpsest: code that imports inplace_abn runs unchanged.

Differences (docs/inplace_abn.md): the weight keeps its sign, where the original computes |weight| + eps; every layer runs
on the CPU and in 16 bits; slope 0 is ReLU. palimpsest.load_original() converts weights that the original trained.
"""
import importlib.metadata as _metadata


def _refuse_original():
    try:
        version = _metadata.version("inplace-abn")
    except _metadata.PackageNotFoundError:
        return
    raise ImportError(f"inplace-abn {version} and palimpsest-inplace-abn both install the package inplace_abn: uninstall both "
                      "(pip uninstall inplace-abn palimpsest-inplace-abn), then install the one that you want")


def _require_palimpsest():
    way_out = "install ours first, in a clone of it: pip install ."
    try:
        import palimpsest
    except ModuleNotFoundError as error:
        if error.name != "palimpsest":
            raise
        palimpsest = None
    place = getattr(palimpsest, "__file__", None)
    if place is None:  # or a folder without code, such as the C++ sources in a clone
        raise ImportError(f"inplace_abn needs palimpsest, which is not installed: {way_out}")
    if not hasattr(palimpsest, "load_original"):
        raise ImportError(f"inplace_abn needs palimpsest, but {place} is another project of that name: {way_out}")


_refuse_original()
_require_palimpsest()

from inplace_abn.abn import ABN, InPlaceABN, InPlaceABNSync  # noqa: E402
from inplace_abn.functions import inplace_abn, inplace_abn_sync  # noqa: E402
from inplace_abn.group import active_group, set_active_group  # noqa: E402

__all__ = ["ABN", "InPlaceABN", "InPlaceABNSync", "active_group", "inplace_abn", "inplace_abn_sync", "set_active_group"]
