"""Weights of other programs in, ours out: the same logits in libtorch's own layers, and nothing lost on the way."""
import argparse
import contextlib
import io
import json
import os
import pickle
import re
import runpy

import pytest
import safetensors.torch
import torch

from cli_support import CHECKPOINT, OUTPUT, ROOT, TINY, TINY_CLASSIFIER, USAGE, error_line, fails, run, succeeds, write
from test_failures import limit_file_size
from weights_support import (TOLERANCE, folded, image, known_activations, known_models, load, logits_of, metadata, network,
                             predicted, relative_error, torchvision)

ACTIVATIONS = {
    "leaky_relu": (torch.nn.LeakyReLU(0.01), ("--activation", "leaky_relu")),
    "steep": (torch.nn.LeakyReLU(0.2), ("--activation", "leaky_relu", "--slope", "0.2")),
    "elu": (torch.nn.ELU(), ("--activation", "elu", "--slope", "1")),
    "relu": (torch.nn.ReLU(), ()),  # import's default
}


def needs(activation):
    if activation == "relu" and activation not in known_activations():
        pytest.skip("this program has no relu")
    return ACTIVATIONS[activation]


# Every network, every activation: what a network does with an activation does not depend on the other.
@pytest.mark.parametrize("name, activation", [("resnet18", "steep"), ("resnet18_narrow", "elu"), ("resnet18_narrow", "relu"),
                                              ("resnet50", "leaky_relu"), ("resnext50_32x4d", "relu")])
def test_torchvisions_logits_are_ours(folder, name, activation):
    module, flags = needs(activation)
    model = network(name, module)
    safetensors.torch.save_file(model.state_dict(), folder / "in.safetensors")
    told = succeeds("import", folder / "in.safetensors", "--model", name, *flags, "--output", folder / "w.safetensors").stdout
    assert f"{len(model.state_dict())} read, 0 renamed, 0 counters added" in told and "7 classes" in told

    # Back again: the very same tensors, and what they belong to.
    succeeds("export", folder / "w.safetensors", "--output", folder / "out.safetensors")
    ours = load(folder / "out.safetensors")
    assert all(torch.equal(tensor, ours.pop(key)) for key, tensor in model.state_dict().items()) and not ours
    said = metadata(folder / "out.safetensors")
    assert (said["model"], said["classes"], said["eps"]) == (name, "7", "1e-05")
    assert said["activation"] == (flags[1] if flags else "relu")
    assert said.get("slope") == {"leaky_relu": "0.01", "steep": "0.2", "elu": "1"}.get(activation)

    picture, x = image(folder)
    want = logits_of(model, x)
    assert relative_error(predicted(folder / "out.safetensors", picture), want) < TOLERANCE

    told = succeeds("export", folder / "w.safetensors", "--fold", "--output", folder / "folded.safetensors").stdout
    assert f"{sum(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules())} batch normalizations" in told
    plain = folded(network(name, module))
    plain.load_state_dict(load(folder / "folded.safetensors"))
    assert relative_error(logits_of(plain, x), want) < TOLERANCE
    assert relative_error(predicted(folder / "folded.safetensors", picture), want) < TOLERANCE


# Every network of torchvision's that has a name of ours; the names are asked of both, so none is forgotten.
TORCHVISIONS = sorted(set(torchvision.models.list_models(torchvision.models)) & known_models())


def published(state):
    """A state dict with the keys of torchvision's published files: older ones count no batches, and DenseNet's have points."""
    return {re.sub(r"(denselayer\d+\.(?:norm|conv))(?=[12]\.)", r"\1.", key): tensor
            for key, tensor in state.items() if not key.endswith("num_batches_tracked")}


def test_our_names_of_torchvisions_networks_are_all_tried():
    assert {"resnet152", "resnext101_64x4d", "densenet121", "densenet161", "densenet169", "densenet201"} < set(TORCHVISIONS)
    assert {"efficientnet_b0", "mobilenet_v3_large", "mobilenet_v3_small"} < set(TORCHVISIONS)
    assert {"alexnet", "vgg16", "googlenet", "inception_v3"} < set(TORCHVISIONS)
    assert len(TORCHVISIONS) == 19


# vgg16 has alexnet's code and half a gigabyte of weights; tests/models/names_test.cpp has its names.
@pytest.mark.parametrize("name", [name for name in TORCHVISIONS if name != "vgg16"])
def test_a_published_file_of_torchvision_gives_its_logits(folder, name):
    model = network(name, torch.nn.ReLU())
    safetensors.torch.save_file(published(model.state_dict()), folder / "in.safetensors")
    told = succeeds("import", folder / "in.safetensors", "--model", name, "--output", folder / "w.safetensors").stdout
    assert (", 0 renamed" in told) == (not name.startswith("densenet"))
    # Their auxiliary classifiers, which the published files have, are for training only.
    assert not any(key.startswith(("aux", "Aux")) for key in load(folder / "w.safetensors"))
    side = 75 if name == "inception_v3" else 64  # the least
    picture, x = image(folder, side, side)
    assert relative_error(predicted(folder / "w.safetensors", picture), logits_of(model, x)) < TOLERANCE


def test_a_training_starts_from_a_published_densenet(trained_classifier, folder):
    state = network("densenet121", torch.nn.ReLU()).state_dict()
    safetensors.torch.save_file(published(state), folder / "in.safetensors")
    succeeds("train", *TINY_CLASSIFIER, "--model", "densenet121", "--activation", "relu", "--data-root", trained_classifier[1],
             *STAND_STILL, "--weights", folder / "in.safetensors", "--reset-classifier", "--output", folder / "run")
    key = "features.denseblock1.denselayer1.norm1.weight"
    assert torch.equal(load(folder / "run/checkpoint.safetensors")[key], state[key])


def test_torchvisions_deeplab_is_named_with_what_of_it_can_be_used(folder):
    with torch.device("meta"):
        model = torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, aux_loss=True)
    state = {key: torch.zeros(tensor.shape, dtype=tensor.dtype) for key, tensor in model.state_dict().items()}
    safetensors.torch.save_file(state, folder / "in.safetensors")
    import_fails(CHECKPOINT, folder / "in.safetensors", "--model", "deeplabv3_resnet50",
                 says=["torchvision's DeepLabV3", "another head", "--weights"])


@pytest.mark.parametrize("archive, wrap", [
    (False, lambda state: state),
    (True, lambda state: {"state_dict": {"module." + key: tensor for key, tensor in state.items()}, "epoch": 3}),
    (True, lambda state: {"model": state, "optimizer": {"state": {}}, "args": argparse.Namespace(lr=0.1)}),
    (True, lambda state: {"epoch": 90, "arch": "resnet18", "state_dict": state, "best_acc1": torch.tensor(69.8)}),
], ids=["old_pickle-state_dict", "zip-data_parallel", "zip-torchvisions_script", "zip-torchs_imagenet_example"])
def test_files_of_torch_save_give_the_same_tensors(folder, archive, wrap):
    state = network("resnet18_narrow", torch.nn.ReLU()).state_dict()
    torch.save(wrap(state), folder / "in.pth", _use_new_zipfile_serialization=archive)
    told = succeeds("import", folder / "in.pth", "--model", "resnet18_narrow", "--output", folder / "w.safetensors").stdout
    assert ("122 renamed" in told) == ("module.conv1.weight" in wrap(state).get("state_dict", ()))
    ours = load(folder / "w.safetensors")
    assert list(ours) and all(torch.equal(tensor, ours[key]) for key, tensor in state.items())


def test_old_files_without_counters_and_half_precision_are_taken(folder):
    state = {key: tensor.half() if tensor.is_floating_point() else tensor
             for key, tensor in network("resnet18_narrow", torch.nn.ReLU()).state_dict().items() if "num_batches" not in key}
    torch.save(state, folder / "in.pt")
    told = succeeds("import", folder / "in.pt", "--model", "resnet18_narrow", "--output", folder / "w.safetensors").stdout
    assert "20 counters added" in told
    ours = load(folder / "w.safetensors")
    assert ours["bn1.num_batches_tracked"].item() == 0 and ours["conv1.weight"].dtype == torch.float32
    assert torch.equal(ours["conv1.weight"], state["conv1.weight"].float())


def test_the_packages_scales_become_plain_ones(folder):
    """In the package's layers gamma is |weight| + eps; a network with that gamma gives the logits wanted."""
    model = network("resnet18_narrow", torch.nn.LeakyReLU(0.01))
    state = {"module." + key: tensor.clone() for key, tensor in model.state_dict().items() if "num_batches" not in key}
    torch.save({"state_dict": state, "arch": "resnet18_narrow"}, folder / "in.pth")
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.copy_(module.weight.abs() + module.eps)
    told = succeeds("import", folder / "in.pth", "--model", "resnet18_narrow", "--format", "inplace_abn", "--output",
                    folder / "w.safetensors").stdout
    assert "20 weights of normalizations changed" in told and "leaky_relu" in told
    picture, x = image(folder)
    assert relative_error(predicted(folder / "w.safetensors", picture), logits_of(model, x)) < TOLERANCE


def test_a_pre_activation_checkpoint_is_taken_for_the_packages_and_folds_where_it_can(folder):
    layers = json.loads(succeeds("info", "--model", "resnext50_preact", "--classes", "5", "--size", "32", "--json").stdout)["layers"]
    torch.manual_seed(1)
    state = {}
    for layer in layers:
        shape, name = [int(n) for n in layer["weight"].split("x")], layer["name"]
        state[f"module.{name}.weight"] = torch.randn(shape) / max(1, torch.Size(shape[1:]).numel()) ** 0.5
        if name == "fc" or len(shape) == 1:
            state[f"module.{name}.bias"] = torch.randn(shape[0]) / 5
        if len(shape) == 1:
            state[f"module.{name}.running_mean"] = torch.randn(shape) / 5
            state[f"module.{name}.running_var"] = torch.rand(shape) + 0.5
    torch.save({"state_dict": state}, folder / "in.pth.tar")
    told = succeeds("import", folder / "in.pth.tar", "--model", "resnext50_preact", "--output", folder / "w.safetensors").stdout
    assert "inplace_abn: 51 weights" in told
    for key, tensor in load(folder / "w.safetensors").items():
        if not key.endswith("num_batches_tracked"):
            theirs = state["module." + key]
            is_scale = theirs.dim() == 1 and key.endswith("weight")
            assert torch.equal(tensor, theirs.abs() + 1e-5 if is_scale else theirs), key

    told = succeeds("export", folder / "w.safetensors", "--fold", "--output", folder / "folded.safetensors").stdout
    assert "34 batch normalizations" in told and "17 that no convolution feeds: mod2.block1.bn1, " in told
    picture, _ = image(folder)
    got, want = (predicted(folder / name, picture) for name in ("folded.safetensors", "w.safetensors"))
    assert relative_error(got, want.double()) < TOLERANCE
    assert "mod2.block1.convs.bn2.weight" not in load(folder / "folded.safetensors")


def test_a_trained_network_works_in_torchvisions_layers(trained_classifier, folder):
    run_folder, _ = trained_classifier
    told = succeeds("export", run_folder, "--output", folder / "w.safetensors").stdout
    assert "resnet18_narrow, 2 classes, leaky_relu with slope 0.01" in told
    model = network("resnet18_narrow", torch.nn.LeakyReLU(0.01), classes=2)
    model.load_state_dict(load(folder / "w.safetensors"))
    picture, x = image(folder)
    want = logits_of(model, x)
    assert relative_error(predicted(folder / "w.safetensors", picture), want) < TOLERANCE
    succeeds("predict", run_folder / "checkpoint.safetensors", picture, "--logits", folder / "trained.safetensors")
    assert relative_error(load(folder / "trained.safetensors")[str(picture)], want) < TOLERANCE


def test_eval_of_an_export_is_eval_of_the_checkpoint(trained_classifier, folder):
    run_folder, data = trained_classifier
    want = json.loads(succeeds("eval", run_folder / "checkpoint.safetensors", "--json").stdout)
    for flags in ((), ("--fold",)):
        succeeds("export", run_folder, *flags, "--output", folder / "w.safetensors", "--overwrite")
        assert str(data) not in metadata(folder / "w.safetensors")["config"]
        got = json.loads(succeeds("eval", folder / "w.safetensors", "--data-root", data, "--json").stdout)
        assert got["loss"] == pytest.approx(want["loss"], rel=1e-5) and got["top1"] == want["top1"]


def test_a_segmentation_network_is_exported_with_its_head(trained, folder):
    told = succeeds("export", trained, "--fold", "--output", folder / "w.safetensors").stdout
    assert "23 batch normalizations" in told
    picture, _ = image(folder)
    succeeds("predict", trained / "checkpoint.safetensors", picture, "--logits", folder / "trained.safetensors")
    want = load(folder / "trained.safetensors")[str(picture)]
    assert want.shape == (11, 96, 80)
    assert relative_error(predicted(folder / "w.safetensors", picture), want.double()) < TOLERANCE


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """(weights of a narrow ResNet-18 with 7 classes, the state dict that they were made of)."""
    folder = tmp_path_factory.mktemp("imported")
    state = network("resnet18_narrow", torch.nn.LeakyReLU(0.01)).state_dict()
    safetensors.torch.save_file(state, folder / "in.safetensors")
    succeeds("import", folder / "in.safetensors", "--model", "resnet18_narrow", "--activation", "leaky_relu", "--output",
             folder / "w.safetensors")
    return folder / "w.safetensors", state


# A step so small that no bit of a parameter changes: the checkpoint holds what the training started from.
STAND_STILL = "--max-steps 1 --lr 1e-38 --weight-decay 0 --momentum 0".split()


def test_a_training_starts_from_imported_weights(imported, trained_classifier, folder):
    weights, state = imported
    data = ("--data-root", trained_classifier[1])
    result = succeeds("train", *TINY_CLASSIFIER, *data, *STAND_STILL, "--weights", weights, "--reset-classifier", "--output",
                      folder / "run")
    assert "without its classifier starts from" in result.stderr and "were trained with" not in result.stderr
    ours = load(folder / "run/checkpoint.safetensors")
    assert ours["fc.weight"].shape == (2, 128)
    assert all(torch.equal(ours[name], state[name]) for name in ("conv1.weight", "bn1.weight", "layer4.1.conv2.weight"))
    succeeds("train", "--resume", "--epochs", "1", "--max-steps", "2", "--output", folder / "run")

    line = fails(CHECKPOINT, "train", *TINY_CLASSIFIER, *data, "--weights", weights, "--output", folder / "other",
                 says=[weights, "fc.weight is (7, 128) instead of (2, 128)", "--reset-classifier"])
    assert "missing" not in line


def test_a_segmentation_network_starts_from_a_classification_network(imported, folder):
    weights, state = imported
    result = succeeds("train", *TINY, *STAND_STILL, "--activation", "elu", "--slope", "1", "--weights", weights, "--output",
                      folder / "run")
    assert "the body of the network starts from" in result.stderr
    assert "were trained with leaky_relu with slope 0.01, this training has elu with alpha 1" in result.stderr
    ours = load(folder / "run/checkpoint.safetensors")
    assert all(torch.equal(ours["body." + key], tensor) for key, tensor in state.items()
               if not key.startswith("fc.") and "running" not in key and "num_batches" not in key)


def test_weights_that_cannot_start_a_training_are_named(imported, folder):
    weights, _ = imported
    train = ("train", *TINY, "--output", folder / "run", "--weights")
    fails(CHECKPOINT, *train, folder / "none.safetensors", says=[folder / "none.safetensors"])
    pth = write(folder / "w.pth", b"PK\3\4")
    fails(CHECKPOINT, *train, pth, says=[pth, "palimpsest import"])
    succeeds("export", weights, "--fold", "--output", folder / "folded.safetensors")
    fails(CHECKPOINT, *train, folder / "folded.safetensors", says=["folded", "without --fold"])
    fails(CHECKPOINT, "train", *TINY, "--model", "deeplabv3_resnet34", "--output", folder / "run", "--weights", weights,
          says=[weights, "body.layer1.2.conv1.weight"])
    fails(CHECKPOINT, "compare", *TINY, "--model", "deeplabv3_resnet34", "--output", folder / "run", "--weights", weights,
          says=[weights])
    assert not (folder / "run/checkpoint.safetensors").exists()


def import_fails(code, file, *arguments, says=(), **options):
    output = file.parent / "out.safetensors"
    line = fails(code, "import", file, "--output", output, *arguments, says=says, **options)
    assert not output.exists() and {p.name for p in file.parent.iterdir()} <= {file.name}
    return line


NARROW18 = ("--model", "resnet18_narrow")


def test_a_file_of_ours_is_not_imported(imported, trained_classifier, folder):
    for file in (imported[0], trained_classifier[0] / "checkpoint.safetensors"):
        fails(CHECKPOINT, "import", file, *NARROW18, "--output", folder / "o.safetensors",
              says=[file, "a file of palimpsest already", "--weights take it as it is", "export"])


def test_weights_of_other_classes_or_poolings_are_told(trained_classifier, folder):
    _, data = trained_classifier
    train = ("train", *TINY_CLASSIFIER, "--data-root", data, *STAND_STILL, "--output")
    weights = trained_classifier[0]
    assert "of these weights is" not in succeeds(*train, folder / "same", "--weights", weights).stderr
    renamed = ("--weights", weights, "--class-names", "cat,zebra")
    told = succeeds(*train, folder / "renamed", *renamed).stderr
    assert "class 1 of these weights is 'dog', here it is 'zebra'; --reset-classifier" in told
    assert "of these weights is" not in succeeds(*train, folder / "reset", *renamed, "--reset-classifier").stderr
    succeeds(*train, folder / "wide", "--model", "wide_resnet16")
    scenes = [flag if flag != "deeplabv3_resnet18_narrow" else "deeplabv3_wide_resnet16" for flag in TINY]
    told = succeeds("train", *scenes, *STAND_STILL, "--weights", folder / "wide", "--output", folder / "scenes").stderr
    assert "of wide_resnet16, which has pooling layers where" in told and "weights of wide_resnet16_a2 have that form" in told


def test_a_missing_file_is_named(folder):
    import_fails(CHECKPOINT, folder / "none.pth", *NARROW18, says=[folder / "none.pth", "No such file"])


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_a_truncated_file_is_named(folder, kind):
    state = network("resnet18_narrow", torch.nn.ReLU()).state_dict()
    file = folder / f"in.{kind}"
    torch.save(state, file) if kind == "pth" else safetensors.torch.save_file(state, file)
    write(file, file.read_bytes()[:1000000])
    import_fails(CHECKPOINT, file, *NARROW18, says=[file, "truncated" if kind == "pth" else "in.safetensors"])


class Malice:
    def __reduce__(self):
        return os.system, ("touch malice",)


@pytest.mark.parametrize("content, says", [
    ({"state_dict": Malice()}, ["wants to run", "system", "save model.state_dict() alone"]),
    ({"epoch": 3, "lr": 0.1}, ["no state dict", "epoch, lr", "state_dict, model"]),
], ids=["malice", "no_state_dict"])
def test_what_is_no_state_dict_is_refused_and_not_run(folder, content, says):
    torch.save(content, folder / "in.pth")
    import_fails(CHECKPOINT, folder / "in.pth", *NARROW18, says=[folder / "in.pth", *says], cwd=folder)


@pytest.mark.parametrize("content, says", [
    (torch.nn.Linear(1, 1), ["wants to run", "torch.nn.modules.linear.Linear"]),
    ([torch.zeros(1)], ["holds a list"]),
    ({"conv1.weight": torch.zeros(1), "step": 3}, ["step is a int"]),
    ({"conv1.weight": torch.zeros(2, dtype=torch.complex64)}, ["conv1.weight", "complex64"]),
], ids=["module", "list", "number", "complex"])
def test_the_script_that_import_runs_refuses_it(folder, capsys, content, says):
    script = runpy.run_path(str(ROOT / "palimpsest/io/state_dict_to_safetensors.py"))
    torch.save(content, folder / "in.pth")
    with pytest.raises(SystemExit) as end:  # here and not in a process of its own, which takes 2 s to load torch
        script["write"](torch, script["find_state_dict"](torch, script["load"](torch, folder / "in.pth")), io.BytesIO())
    told = capsys.readouterr().err
    assert end.value.code == script["BAD_FILE"] and all(text in told for text in says), told


@pytest.mark.parametrize("version, is_safe", [("2.5.1", False), ("2.5.0+cu124", False), ("1.13.1", False), ("garbage", False),
                                              ("", False), ("2.6.0", True), ("2.11.0+cu130", True), ("10.0", True)])
def test_import_reads_with_a_torch_that_no_file_gets_round_alone(folder, capsys, monkeypatch, version, is_safe):
    script = runpy.run_path(str(ROOT / "palimpsest/io/state_dict_to_safetensors.py"))
    torch.save({"w": torch.zeros(2)}, folder / "in.pth")
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr("sys.argv", ["script", str(folder / "in.pth")])
    read = []
    globals_of_main = script["main"].__globals__
    globals_of_main.update(load=lambda *_: read.append(True) or {}, check_archive=lambda *_: None, bound_memory=lambda *_: None,
                           find_state_dict=lambda *_: {}, check_bytes=lambda *_: None, write=lambda *_: None)
    threads, stdout = torch.get_num_threads(), os.dup(1)  # main() changes both
    try:
        with contextlib.nullcontext() if is_safe else pytest.raises(SystemExit) as end:
            script["main"]()
    finally:
        torch.set_num_threads(threads)
        os.dup2(stdout, 1)
        os.close(stdout)
    assert bool(read) == is_safe
    if not is_safe:
        assert end.value.code == script["OLD_TORCH"] and "torch 2.6 or later is needed" in capsys.readouterr().err


def test_a_foreign_file_is_named(folder):
    import_fails(CHECKPOINT, write(folder / "in.pth", b"some text"), *NARROW18, says=["neither a safetensors file nor"])
    import_fails(CHECKPOINT, write(folder / "in.pth", b""), *NARROW18, says=["neither a safetensors file nor"])
    import_fails(CHECKPOINT, write(folder / "in.pth", pickle.dumps({"a": 1})), *NARROW18, says=[folder / "in.pth"])


def test_another_network_is_answered_with_keys_shapes_and_the_model_that_fits(folder):
    safetensors.torch.save_file(network("resnet34", torch.nn.ReLU()).state_dict(), folder / "in.safetensors")
    import_fails(CHECKPOINT, folder / "in.safetensors", "--model", "resnet50",
                 says=["does not fit resnet50", "missing key", "layer1.0.conv3.weight", "layer1.0.conv1.weight is (64, 64, 3, 3) "
                       "instead of (64, 64, 1, 1)", "it fits --model resnet34"])
    import_fails(CHECKPOINT, folder / "in.safetensors", "--model", "resnet34", "--classes", "10",
                 says=["fc.weight is (7, 512) instead of (10, 512)", "the file has 7 classes"])
    import_fails(USAGE, folder / "in.safetensors", "--model", "resnet34", "--class-names", "a,b", says=["7 classes", "2 names"])
    import_fails(USAGE, folder / "in.safetensors", says=["--model is required"])


@pytest.mark.parametrize("key, value, says", [("bn1.running_var", -1.0, "variance below 0"),
                                              ("layer1.0.conv1.weight", float("nan"), "NaN")])
def test_values_that_no_training_leaves_are_named(folder, key, value, says):
    state = network("resnet18_narrow", torch.nn.ReLU()).state_dict()
    state[key].view(-1)[3] = value
    safetensors.torch.save_file(state, folder / "in.safetensors")
    import_fails(CHECKPOINT, folder / "in.safetensors", *NARROW18, says=[key, says])


def test_a_python_without_torch_is_named_with_the_way_out(folder, monkeypatch):
    torch.save(network("resnet18_narrow", torch.nn.ReLU()).state_dict(), folder / "in.pth")
    monkeypatch.setenv("PALIMPSEST_PYTHON", "/no/such/python")
    import_fails(USAGE, folder / "in.pth", *NARROW18, says=["/no/such/python", "set PALIMPSEST_PYTHON"])


def test_a_torch_of_the_current_folder_is_not_taken_for_torch(folder):
    state = network("resnet18_narrow", torch.nn.ReLU()).state_dict()
    torch.save(state, folder / "in.pth")
    write(folder / "here/torch.py", b"raise SystemExit(9)")
    succeeds("import", folder / "in.pth", *NARROW18, "--output", folder / "w.safetensors", cwd=folder / "here")


@pytest.mark.parametrize("command", ["import", "export"])
def test_no_file_is_lost(imported, folder, command):
    source = imported[0].with_name("in.safetensors") if command == "import" else imported[0]
    arguments = (command, source, *(NARROW18 if command == "import" else ()), "--output")
    output = write(folder / "w.safetensors", b"precious")
    fails(OUTPUT, *arguments, output, says=[output, "--overwrite"])
    fails(OUTPUT, *arguments, output, "--overwrite", says=[output, "File too large"], preexec_fn=limit_file_size(1))
    assert output.read_bytes() == b"precious" and [p.name for p in folder.iterdir()] == ["w.safetensors"]
    fails(OUTPUT, *arguments, output / "below", says=[output / "below"])
    fails(USAGE, *arguments, source, "--overwrite", says=["another file than the input"])
    fails(USAGE, *arguments[:-1], says=["--output is required"])
    succeeds(*arguments, output, "--overwrite")
    assert set(load(output)) == set(load(source))


def test_what_cannot_be_exported_is_named(imported, folder):
    fails(CHECKPOINT, "export", folder, "--output", folder / "w.safetensors", says=[f"'{folder}' holds no checkpoint.safetensors"])
    weights, state = imported
    succeeds("export", weights, "--fold", "--output", folder / "folded.safetensors")
    fails(CHECKPOINT, "export", folder / "folded.safetensors", "--output", folder / "w.safetensors", says=["folded already"])
    safetensors.torch.save_file(state, folder / "plain.safetensors")
    fails(CHECKPOINT, "export", folder / "plain.safetensors", "--output", folder / "w.safetensors", says=["--config"])


def test_logits_need_distinct_images(imported, folder):
    picture, _ = image(folder)
    fails(USAGE, "predict", imported[0], picture, picture, "--logits", folder / "l.safetensors", says=[picture, "twice"])
    result = run("predict", imported[0], picture, "--logits", folder / "image.png/l.safetensors")
    assert result.returncode == OUTPUT and str(folder / "image.png/l.safetensors") in error_line(result)
