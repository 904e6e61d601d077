"""convert() and revert(): the layers of a network replaced in what its forward computes, not in its tree of modules.

    tracing.py   the graph of a module's forward, and when it may be used
    questions.py what a forward asks about its values that no graph can answer
    layers.py    which modules and functions are which layer
    aliases.py   which values share memory, and which change in place
    formulas.py  activations that a forward writes out
    custom_activations.py  activations that the caller names
    editor.py    changes of a graph that every part of the rewriting makes
    options.py   what the caller asked for
    norms.py     the batch normalizations of a graph, with the sum and the activation behind them
    writer.py    fused layers in their place
    rewrite.py   the whole rewriting of a graph, in its order
    readers.py   what reads a layer's result: convolutions, concatenations, poolings
    sources.py   what backward makes again in place of having it saved
    out_of_place.py  activations in place whose input is made again
    runtime.py   what the rewritten graph calls: fused layers
    again.py     what it calls for values that backward makes again
    watch.py     what a rewritten graph depends on
    region.py    a module that runs its rewritten graph
    proof.py     compares a converted network with the original
    report.py    what was converted, and why the rest was not
    api.py       convert() and revert()
"""
from palimpsest._convert.api import convert, revert

__all__ = ["convert", "revert"]
