"""Trains convolutional networks in a fraction of the memory, with exact gradients.

    import palimpsest
    model, report = palimpsest.convert(model, example_inputs)       # a network as it is, which keeps less for backward
    layer = palimpsest.nn.BatchNormAct(64, activation="silu")       # batch normalization and activation, one tensor saved
    y = palimpsest.checkpoint(block, x)                             # saves x alone, runs block again in backward
    with palimpsest.memory.measure() as m: step()                   # what a step keeps and needs at its peak

Modules are in palimpsest.nn, functions in palimpsest.functional.
"""
from palimpsest._library import load as _load

_load()

from palimpsest import functional, memory, nn  # noqa: E402: they use the operators
from palimpsest._checkpoint import checkpoint  # noqa: E402
from palimpsest._convert import convert, revert  # noqa: E402
from palimpsest._weights import load_original  # noqa: E402

__all__ = ["checkpoint", "convert", "functional", "load_original", "memory", "nn", "revert"]
__version__ = "0.1.0"
