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


class Copied:
    """A copy of a small tensor, which others may change before backward."""

    __slots__ = ("tensor",)

    def __init__(self, tensor):
        self.tensor = tensor.detach().clone()

    def __call__(self):
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


def read(source, z, function, *arguments, source_of_result=None, may_widen=False, **keywords):
    """function(*arguments), z among them: autograd saves z's source in place of z, and in place of the result its source.
    may_widen: what the function saves of z may be a copy of more bits, as of a normalization under autocast on a GPU."""
    if source is None or not hooks_are_free():
        return function(*arguments, **keywords)
    # autograd holds pack(), which must not hold z
    whole, shape, count = _place_of(z), z.shape, z.numel() if z.is_contiguous() else None
    others = {_place_of(a): a for a in (*arguments, *keywords.values()) if isinstance(a, torch.Tensor) and a is not z}
    may_widen = may_widen and z.element_size() == 2 and all(a.shape != shape for a in others.values())

    def pack(t):
        place, saved = _place_of(t), None
        if place == whole:
            saved = source
        elif place[:2] == whole[:2]:
            if t.numel() == count and t.is_contiguous():  # a linear layer's, of one dimension for all samples
                saved = of_shape(source, t.shape)
        elif source_of_result is not None and t.shape == shape and t.dtype == whole[1]:
            saved = source_of_result
        elif may_widen and t.shape == shape and t.dtype == torch.float32:
            saved = Source([source], lambda parts: parts[0]().float())
        if saved is None:
            return Kept(others.get(place, t))
        saved.add_reader()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept()):
        return function(*arguments, **keywords)


def _place_of(t):
    return t.data_ptr(), t.dtype, t.shape, t.stride()


def of_shape(source, shape):
    """The source of the same values in another shape."""
    return Source([source], lambda parts: parts[0]().reshape(shape))


def reading_sizes(function, x, *arguments, **keywords):
    """function(x, ...), an average pooling or a padding: of what autograd saves, its backward reads sizes alone, so that no value
    is kept."""
    if not hooks_are_free() or x.device.type not in ("cpu", "cuda"):
        return function(x, *arguments, **keywords)
    with torch.autograd.graph.saved_tensors_hooks(_layout_of, lambda layout: torch.empty_strided(**layout)):
        return function(x, *arguments, **keywords)


class _Factors:
    """The factors of a dropout, 0 or 1 / (1 - p): a byte for each."""

    __slots__ = ("mask", "scale")

    def __init__(self, factors):
        self.mask, self.scale = factors.bool(), factors.amax()

    def __call__(self):
        return self.mask.to(self.scale.dtype).mul_(self.scale)

    def times(self, x):
        return self().mul_(x)


def keeping_mask(dropout, rate, x, *arguments, **keywords):
    """(z, again): z is dropout(x, ...), of whose factors backward keeps a byte per value; again(x) is z once more. again is
    None where nothing is dropped, so that z is x, and where nothing is kept for backward."""
    if not hooks_are_free():
        return dropout(x, *arguments, **keywords), None
    saved, shape = [], x.shape  # autograd holds pack(), which must not hold x

    def pack(t):
        is_large = t.shape == shape and t.is_floating_point() and t.numel() > 1
        saved.append(_Factors(t) if is_large else Kept(t))
        return saved[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept()):
        z = dropout(x, *arguments, **keywords)
    if not saved:
        return z, None
    factors, = saved
    if isinstance(factors, _Factors):
        return z, factors.times
    if factors.tensor.dtype is torch.bool:  # a GPU's
        return z, lambda x: torch.ops.aten.native_dropout_backward(x, factors.tensor, 1 / (1 - rate))
    return z, lambda x: torch.mul(x, factors.tensor).view(shape)  # one factor per channel, or 0 for all


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
