"""What benchmarks/gpu_time.py measures on a GPU: every unit of work, the most important first, with the limits of its claims
and the seconds that it takes on one H200 with 16 cores. No torch here: scripts/gpu_check lists this without one."""
import dataclasses

SHAPES = ((64, 256, 56, 56), (64, 512, 28, 28), (64, 1024, 14, 14), (64, 2048, 7, 7))
LAYERS, STEPS = "layers", "steps"
# Importance: what the first minute must tell; the other figures; programs that torch.compile makes in 8 to 12 s each (in half of
# that if its cache has them: --compile-ahead).
FIRST, SECOND, LAST = 1, 2, 3
COPY_LIMIT = 1 / 0.85
PACKAGE_LIMIT = 0.50


@dataclasses.dataclass(frozen=True)
class Work:
    """A unit of work: `kind` names the function that does it (gpu/layers.py, gpu/steps.py), `arguments` are its
    arguments, `limits` {opponent: limit of the ratio}; an opponent without one is a control."""
    piece: str
    kind: str
    name: str
    importance: int
    seconds: float
    arguments: dict = dataclasses.field(default_factory=dict)
    limits: dict = dataclasses.field(default_factory=dict)


def named(shape, layout, dtype):
    return f"{list(shape)} {layout} {dtype}"


def layer(shape, layout, dtype, importance, **limits):
    return Work(LAYERS, "layer", named(shape, layout, dtype), importance, 1.5,
                dict(shape=shape, layout=layout, dtype=dtype), limits)


def compiled(shape, layout, dtype, limit):
    return Work(LAYERS, "compiled", f"{named(shape, layout, dtype)}, torch.compile", LAST, 6,
                dict(shape=shape, layout=layout, dtype=dtype), {} if limit is None else {"compiled": limit})


def package(shape, layout, dtype):
    return Work(LAYERS, "package", f"{named(shape, layout, dtype)}, inplace_abn", LAST, 1,
                dict(shape=shape, layout=layout, dtype=dtype), {"inplace_abn": PACKAGE_LIMIT})


def step(name, importance, seconds, arguments, **limits):
    return Work(STEPS, "step", name, importance, seconds, arguments, limits)


def same_bytes(channels):
    """A shape with as many values as the largest of SHAPES has, of so many channels."""
    return (64, channels, 224, 64 * 256 * 56 * 56 // (64 * channels * 224))


HEADLINE = ("channels-last", "bf16")
CLAIMED = (("NCHW", "f32"), ("NCHW", "f16"))
CONTROLS = (("channels-last", "f32"), ("NCHW", "bf16"))
TWO_LARGEST = SHAPES[:2]


def of_headline(shape):
    return layer(shape, *HEADLINE, FIRST, eager=0.50, copy=COPY_LIMIT)


def of_claimed(shape, layout, dtype):
    """The largest two shapes run near the bandwidth of a copy, too."""
    return layer(shape, layout, dtype, SECOND, eager=0.65, **({"copy": COPY_LIMIT} if shape in TWO_LARGEST else {}))


def kernels(shape, layout, dtype, importance):
    return Work(LAYERS, "kernels", f"kernels of {named(shape, layout, dtype)}", importance, 2,
                dict(shape=shape, layout=layout, dtype=dtype))


PLAN = [
    Work(LAYERS, "copy", "a copy on the device", FIRST, 2),
    of_headline(SHAPES[0]),
    kernels(SHAPES[0], *HEADLINE, FIRST),
    *(of_headline(shape) for shape in SHAPES[1:]),
    *(kernels(shape, *HEADLINE, FIRST) for shape in SHAPES[1:]),
    step("ResNet-50, batch 64, bf16 autocast", FIRST, 6, dict(network="resnet50", precision="bf16", batch=64), time=0.93),
    step("ResNeXt-101, batch 128, bf16", FIRST, 15, dict(network="resnext101", batch=128), time=0.90, kept=0.52),
    step("DenseNet-121, batch 128, bf16", FIRST, 10, dict(network="densenet121", batch=128), time=0.75),
    Work(LAYERS, "host", "host time of a layer", FIRST, 3, {}, {"host": 1.0}),
    Work(LAYERS, "not_a_number", "NaN in one channel", FIRST, 2),
    *(each for layout, dtype in CLAIMED for shape in SHAPES
      for each in (of_claimed(shape, layout, dtype), kernels(shape, layout, dtype, SECOND))),
    Work(STEPS, "precisions", "ResNet-50, batch 64, f32 and 16 bits", SECOND, 10, dict(batch=64),
         {"f32": 0.50, "f16": 0.95}),
    # Narrow, and not a multiple of the 8 values of a vector.
    *(layer(same_bytes(channels), *HEADLINE, SECOND) for channels in (32, 16, 8, 19, 3)),
    *(Work(LAYERS, "pool", f"max pooling 3x3/2 [128, 64, 112, 112] {layout} bf16", SECOND, 1.5,
           dict(shape=(128, 64, 112, 112), layout=layout, dtype="bf16")) for layout in ("NCHW", "channels-last")),
    Work(LAYERS, "large", "2^31 + 2^27 values, channels-last bf16", SECOND, 5,
         dict(shape=(34, 256, 512, 512), layout="channels-last", dtype="bf16")),
    Work(LAYERS, "side_channel", "a channel that z does not tell", SECOND, 1.5),
    *(layer(shape, layout, dtype, SECOND) for layout, dtype in CONTROLS for shape in SHAPES),
    *(package(shape, layout, dtype) for layout, dtype in (*CLAIMED, HEADLINE) for shape in SHAPES),
    *(compiled(shape, *HEADLINE, 0.90) for shape in SHAPES),
    *(compiled(shape, layout, dtype, None) for layout, dtype in CLAIMED for shape in TWO_LARGEST),
]


def chosen(pieces, importances):
    """The units of the plan of these pieces and importances, in its order."""
    return [work for work in PLAN if work.piece in pieces and work.importance in importances]
