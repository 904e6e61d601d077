"""docs/results/cifar10.md: short trainings on CIFAR-10, beside the literature's figures.

Made from training/cifar10_*.json and training/exchanged_activations.json.
"""
import panels
from result_page import NOT_MEASURED, read, table

TITLE = "docs/results/cifar10.md: trainings on CIFAR-10 beside the literature's figures"

# Name of the file: title, what the literature reports for the network or for the nearest one.
TRAININGS = {
    "cifar10_densenet": ("DenseNet-BC-40, k = 12",
                         "95.49 % after 300 epochs with 100 layers (Pleiss et al., figure 2); nothing for 40 layers"),
    "cifar10_resnet_preact": ("ResNet-29, pre-activation",
                              "94.54 % after 200 epochs with 164 layers (He et al. 2016, table 2); nothing for 29 layers"),
}

PAGE = """# CIFAR-10: short trainings

Each network trains from one seed for as many epochs as 100 minutes of two cores allow, and its
learning rate falls to 0 by a cosine within them. So these are not the literature's figures, which come from 200 to 300
epochs: they are the accuracy of a short schedule. `benchmarks/pages/pages cifar10` writes this page from the JSON files
beside it; the rows of `training/` in [README.md](README.md) have the commands.

{trainings}
{picture}
## Activations exchanged for evaluation

The in-place paper's table 1 trains ResNeXt-101 on ImageNet with ReLU and with leaky ReLU, and evaluates each with the other
activation too. The same for the ResNet-29 on CIFAR-10 (`palimpsest reproduce table1_relu --small`,
`training/exchanged_activations.json`), top-1 on 10,000 images, in percent:

{exchange}

The paper's, in the same order, 224² centre crop: 77.74 and 76.88 trained with ReLU; 76.81 and 77.04 trained with leaky ReLU.
"""


def trainings_table(measured):
    rows = []
    for name, (title, literature) in TRAININGS.items():
        if name not in measured:
            rows.append([title, "", "", NOT_MEASURED, "", literature])
            continue
        run, = measured[name]["runs"]
        evaluations, losses = run["evaluations"], run["losses"]
        last = evaluations[-1]
        middle = evaluations[len(evaluations) // 2 - 1]
        rows.append([title, measured[name].get("machine", "not recorded"), f"{100 * middle['top1']:.2f} after {middle['epoch']}",
                     f"{100 * last['top1']:.2f} after {last['epoch']}", f"{losses[-1]['loss']:.3f}, {last['loss']:.3f}", literature])
    return table(["network", "on", "top-1, %, half-way", "top-1, %, at the end", "loss in training, in evaluation", "literature"], rows)


def chart(measured):
    """Top-1 and loss over epochs of each training."""
    drawn = []
    for name, training in measured.items():
        title, run = TRAININGS[name][0], training["runs"][0]
        accuracy = [(e["epoch"], 100 * e["top1"]) for e in run["evaluations"]]
        drawn.append((f"{title}: top-1, %", [(panels.COLORS[1], accuracy)]))
        drawn.append((f"{title}: loss", [(panels.COLORS[0], [(e["epoch"], e["loss"]) for e in run["losses"]]),
                                         (panels.COLORS[1], [(e["epoch"], e["loss"]) for e in run["evaluations"]])]))
    return panels.chart(["training", "evaluation"], drawn, "Accuracy and loss of trainings on CIFAR-10", "epochs")


def exchange_text(measured):
    """The table with its training."""
    names = list(dict.fromkeys(row["trained"] for row in measured["rows"]))
    top1 = {(row["trained"], row["evaluated"]): row["top1"] for row in measured["rows"]}
    return f"{measured['training']}.\n\n" + table(["trained with", *(f"evaluated with `{name}`" for name in names)],
                 [[f"`{name}`", *(f"{100 * top1[name, other]:.2f}" for other in names)] for name in names], numbers=len(names))


def write(results):
    paths = {name: results / f"training/{name}.json" for name in TRAININGS}
    measured = {name: read(path) for name, path in paths.items() if path.exists()}
    exchanged = results / "training/exchanged_activations.json"
    exchange = exchange_text(read(exchanged)) if exchanged.exists() else NOT_MEASURED.capitalize() + "."
    files = {results / "training/cifar10.svg": chart(measured)} if measured else {}
    picture = "\n![top-1 over epochs](training/cifar10.svg)\n" if measured else ""
    text = PAGE.format(trainings=trainings_table(measured), picture=picture, exchange=exchange)
    return {results / "cifar10.md": text, **files}
