"""Files with the names of the In-Place ABN paper's release give the values of the release's networks."""
import json

import pytest
import torch

from cli_support import CHECKPOINT, fails, succeeds
from release_networks import NETWORKS
from weights_support import TOLERANCE, image, load, logits_of, predicted, relative_error


@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_of_the_release_gives_the_values_of_its_network(folder, name):
    torch.manual_seed(1)
    model = NETWORKS[name](7).eval()
    state = model.state_dict()
    assert not any("num_batches" in key for key in state) and "classifier.fc.bias" in state
    torch.save({"epoch": 90, "state_dict": {"module." + key: tensor for key, tensor in state.items()}}, folder / "in.pth.tar")
    told = succeeds("import", folder / "in.pth.tar", "--model", name, "--output", folder / "w.safetensors").stdout
    norms = sum(key.endswith("running_var") for key in state)
    assert f"{len(state)} read, {len(state)} renamed, {norms} counters added" in told and "7 classes" in told
    assert f"inplace_abn: {norms} weights of normalizations changed to |weight| + eps" in told
    picture, x = image(folder)
    assert relative_error(predicted(folder / "w.safetensors", picture), logits_of(model, x)) < TOLERANCE


def test_a_plain_densenet_is_told_from_the_releases(folder):
    state = NETWORKS["densenet264_deep_stem"](7).state_dict()
    torch.save({"state_dict": state}, folder / "in.pth.tar")
    fails(CHECKPOINT, "import", folder / "in.pth.tar", "--model", "densenet264", "--output", folder / "w.safetensors",
          says=["it does not fit densenet264", "features.conv0.weight", "it fits --model densenet264_deep_stem"])


def test_a_published_classifier_starts_the_body_of_a_segmentation_network(folder):
    """The pooled form and the form A2 have the same names."""
    torch.manual_seed(1)
    state = NETWORKS["wide_resnet16"](7).state_dict()
    torch.save({"state_dict": state}, folder / "in.pth.tar")
    succeeds("import", folder / "in.pth.tar", "--model", "wide_resnet16_a2", "--output", folder / "w.safetensors")
    ours = load(folder / "w.safetensors")
    assert all(torch.equal(ours[key], tensor) for key, tensor in state.items() if key.endswith("conv1.weight"))


def test_a_segmentation_snapshot_of_the_release_has_a_state_dict_per_part(folder):
    name = "deeplabv3_resnet18_narrow"
    layers = json.loads(succeeds("info", "--model", name, "--classes", "5", "--size", "64", "--json").stdout)["layers"]
    parts = {}
    for layer in layers:
        part, _, rest = layer["name"].partition(".")
        shape, below = [int(n) for n in layer["weight"].split("x")], rest + "." if rest else ""
        wanted = ["weight"]
        if len(shape) == 1 or part == "cls":
            wanted.append("bias")
        if len(shape) == 1:
            wanted += ["running_mean", "running_var"]
        for i, key in enumerate(wanted):
            parts.setdefault(part, {})[below + key] = torch.full(shape if i == 0 else shape[:1], float(i + 1))
    assert list(parts) == ["body", "head", "cls"]
    torch.save({"state_dict": parts, "training_meta": {}}, folder / "in.pth.tar")
    succeeds("import", folder / "in.pth.tar", "--model", name, "--format", "inplace_abn", "--output-stride", "8", "--output",
             folder / "w.safetensors")
    ours = load(folder / "w.safetensors")
    assert torch.equal(ours["cls.bias"], parts["cls"]["bias"]) and ours["head.map_bn.weight"][0] == 1 + 1e-5
    assert torch.equal(ours["body.conv1.weight"], parts["body"]["conv1.weight"])
