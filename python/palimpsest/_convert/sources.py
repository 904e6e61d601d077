"""What backward makes again in place of having it saved: a tensor's source holds what the tensor is made from."""
import weakref

import torch

from palimpsest._convert.tracing import saved_tensors_hooks


def hooks_are_free():
    """False under a checkpoint or other hooks of the caller, which must see every tensor that is saved."""
    return not torch.compiler.is_compiling() and torch.is_grad_enabled() and \
        saved_tensors_hooks() is None and torch._C._autograd._saved_tensors_hooks_is_enabled()


class Kept:
    """A tensor that is saved, with autograd's check that nobody changed it, which hooks go without."""

    __slots__ = ("tensor", "version", "anyway")

    def __init__(self, tensor, anyway=True):
        self.tensor = tensor.detach()
        self.version = tensor._version
        self.anyway = anyway  #: whether others keep it, too

    def check(self):
        if self.tensor._version != self.version:
            raise RuntimeError("one of the variables needed for gradient computation has been modified by an inplace operation: "
                               f"a tensor of shape {tuple(self.tensor.shape)} is at version {self.tensor._version}, expected "
                               f"version {self.version}")

    def add_reader(self):
        pass

    def __call__(self):
        self.check()
        return self.tensor


class Source:
    """What a tensor is made from again: parts (Kept, or other sources), and make(), which gets their values.

    A tensor that several nodes of backward read is made once if they run one after the other."""

    __slots__ = ("parts", "make", "readers", "waiting", "made", "__weakref__")

    anyway = True

    def __init__(self, parts, make):
        self.parts, self.make = parts, make
        self.readers = self.waiting = 0  # nodes that saved it; those of them that have yet to read it in this backward pass
        self.made = None

    def add_reader(self):
        if not self.readers:
            for part in self.parts:
                part.add_reader()
        self.readers += 1

    def check(self):
        for part in self.parts:
            part.check()

    def __call__(self):
        self.check()
        made, self.made = self.made, None
        if made is None:
            with torch.no_grad():
                made = self.make(self.parts)
        self.waiting = (self.waiting or self.readers) - 1
        if self.waiting > 0:
            self._hold(made)
        return made

    def _hold(self, made):
        """Until the next reader reads it, or another source holds something: one such tensor is in memory at a time."""
        global _holder
        other = _holder and _holder()
        if other is not None:
            other.made = None
        self.made, _holder = made, weakref.ref(self)


_holder = None  # a weak reference to the source that holds what it made


def read(source, z, function, *arguments, **keywords):
    """function(*arguments), z among them: autograd saves z's source in place of z."""
    if source is None or not hooks_are_free():
        return function(*arguments, **keywords)
    like = (z.data_ptr(), z.shape, z.stride(), z.dtype)
    others = {(a.data_ptr(), a.shape): a for a in arguments if isinstance(a, torch.Tensor) and a is not z}

    def pack(t):
        if (t.data_ptr(), t.shape, t.stride(), t.dtype) == like:
            source.add_reader()
            return source
        return Kept(others.get((t.data_ptr(), t.shape), t))

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept()):
        return function(*arguments, **keywords)


def reading_sizes(function, x, *arguments, **keywords):
    """function(x, ...), an average pooling: of what autograd saves, its backward reads sizes alone, so that no value is kept."""
    if not hooks_are_free() or x.device.type not in ("cpu", "cuda"):
        return function(x, *arguments, **keywords)
    with torch.autograd.graph.saved_tensors_hooks(_layout_of, lambda layout: torch.empty_strided(**layout)):
        return function(x, *arguments, **keywords)


def _layout_of(t):
    return {"size": t.shape, "stride": t.stride(), "dtype": t.dtype, "device": t.device}


def of_concatenation(z, parts, dim):
    """The source of z, the concatenation of what the parts hold."""
    layout = _layout_of(z)

    def make(parts):
        whole = torch.empty_strided(**layout)
        begin = 0
        for part in parts:  # one at a time: no other is in memory beside the whole
            value = part()
            whole.narrow(dim, begin, value.shape[dim]).copy_(value)
            begin += value.shape[dim]
        return whole

    return Source(parts, make)
