"""docs/results/step_profile.md: where the time of a training step goes, eager and ours. Made from step_profile.json."""
from result_page import NETWORK_NAMES, read, table

TITLE = "docs/results/step_profile.md: where the time of a training step goes, by operator"

COMMAND = "python benchmarks/step_profile.py --json docs/results/step_profile.json"

PAGE = """# Where the time of a training step goes

A step is forward, cross entropy, backward and SGD with momentum, in f32 and channels-last, of torchvision's networks with
{batch} images of {size}x{size}: eager, and after `palimpsest.convert`. The machine is {processor}, {threads} threads, no GPU,
libtorch {libtorch}. torch.profiler records {repeats} steps of each side in turn, and the fastest counts. A cell holds milliseconds
and the share of the step. The pieces add up to the step. `benchmarks/pages/pages step_profile` writes this
page from `step_profile.json`, which `{command}` writes.

The time of an operator is its own, without that of the operators that it calls. Ours does in one operator what takes several in
libtorch, and has these pieces:

- A normalization, with its activation and the sum with the residual, is `normalization and activation`.
- A convolution that applies the activation as it reads its input is a convolution. So is a layer of a dense block, where the
  first normalization is applied as the features are read: its time is in the three pieces of the convolution.
- What backward computes again for a weight gradient is in the weight gradient.

The two gradients of a convolution are told apart by steps whose convolutions' weights require no gradient: what backward takes
there is the input gradient, and what it takes more otherwise is the weight gradient. `between operators` is Python and
libtorch's autograd engine; the claim is that it takes, with the operators of no piece, at most {limit:.0%} of a step:
{claims}.

Below each table stand the two pieces of ours that take most time beside the convolutions. They come next. A change that makes
the code larger is kept if a step becomes 2% faster.

{sections}"""

SECTION = """## {name}

{table}

Beside the convolutions, ours takes most time for {next}.

Without the profiler a step takes {eager} ms eager, {ours} ms ours: medians and quartiles of the same run.
"""


def cell(side, value):
    return f"{value:.0f} ({100 * value / side['step']:.0f} %)"


def spread(side):
    return "{median:.0f} ({low:.0f} to {high:.0f})".format(**side["without_profiler"])


def next_pieces(side):
    """The two pieces that take most time, without the convolutions."""
    beside = {piece: value for piece, value in side["pieces"].items() if not piece.startswith("convolution")}
    largest = sorted(beside, key=beside.get, reverse=True)[:2]
    return " and ".join(f"`{piece}` ({100 * beside[piece] / side['step']:.0f} %)" for piece in largest)


def section(name, found):
    eager, ours = found["eager"], found["ours"]
    rows = [[piece, cell(eager, value), cell(ours, ours["pieces"][piece]), f"{ours['pieces'][piece] - value:+.0f}"]
            for piece, value in eager["pieces"].items()]
    rows.append(["the step", f"{eager['step']:.0f}", f"{ours['step']:.0f}", f"{ours['step'] - eager['step']:+.0f}"])
    return SECTION.format(name=NETWORK_NAMES.get(name, name), table=table(["ms", "eager", "ours", "difference"], rows, numbers=3),
                          next=next_pieces(ours), eager=spread(eager), ours=spread(ours))


def claims_of(measured):
    parts = []
    for name, found in measured["networks"].items():
        for side in ("eager", "ours"):
            share = sum(found[side]["pieces"][piece] for piece in measured["rest"]) / found[side]["step"]
            if share > measured["limit"]:
                parts.append(f"{NETWORK_NAMES.get(name, name)}, {side}, takes {100 * share:.1f} %: FAIL")
    return "; ".join(parts) or "it holds"


def write(results):
    measured = read(results / "step_profile.json", COMMAND)
    sections = "\n".join(section(name, found) for name, found in measured["networks"].items())
    page = PAGE.format(**{key: measured[key] for key in ("processor", "threads", "libtorch", "repeats", "batch", "size")},
                       command=COMMAND, limit=measured["limit"], claims=claims_of(measured), sections=sections)
    return {results / "step_profile.md": page}
