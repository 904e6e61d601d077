"""Files from strangers: they choose no path, cost no memory or stack, and print nothing that a terminal obeys."""
import json
import os
import resource
import struct
import time

import numpy as np
import pytest

from cli_support import (CHECKPOINT, DATA_ERROR, MEMORY, TINY, TINY_CLASSIFIER, USAGE, fails, image_folder, png, run,
                         segmentation_folder, succeeds, write)

NOT_UTF8 = "bad\udcff\udcfe"  # the bytes FF FE, as Python holds them


def read_header(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), data[8 + size:]


def write_header(path, header, values=b""):
    text = json.dumps(header).encode()
    return write(path, struct.pack("<Q", len(text)) + text + values)


def with_metadata(source, target, **entries):
    """A copy of a checkpoint with other metadata."""
    header, values = read_header(source)
    header["__metadata__"].update(entries)
    return write_header(target, header, values)


def config_of(path):
    return read_header(path)[0]["__metadata__"]["config"]


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("segmenter")
    succeeds("train", *TINY, "--max-steps", "1", "--output", folder / "run", "--quiet")
    return folder / "run/checkpoint.safetensors"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    data = image_folder(folder / "data")
    succeeds("train", *TINY_CLASSIFIER, "--max-steps", "1", "--data-root", data, "--output", folder / "run", "--quiet")
    return folder / "run/checkpoint.safetensors"


@pytest.fixture(scope="module")
def in_f16(tmp_path_factory):
    folder = tmp_path_factory.mktemp("in_f16")
    succeeds("train", *TINY, "--precision", "f16", "--epochs", "2", "--max-steps", "1", "--output", folder / "run", "--quiet")
    return folder / "run"


@pytest.fixture
def image(folder):
    return write(folder / "in/a.png", png(np.full((48, 64, 3), 90)))


def test_a_stored_folder_is_not_written_to(folder, segmenter, image):
    hostile = with_metadata(segmenter, folder / "h.safetensors",
                            config=config_of(segmenter).replace("[output]", '[output]\nfolder = "PWNED"'))
    assert "PWNED" in config_of(hostile)
    fails(USAGE, "predict", hostile, image, cwd=folder, says=["--output"])
    succeeds("predict", hostile, image, "--logits", folder / "l.safetensors", cwd=folder)
    assert not (folder / "PWNED").exists()


def test_stored_threads_and_limits_are_those_of_another_machine(folder, segmenter, image):
    config = config_of(segmenter).replace("[train]", "[train]\nthreads = 1000\nmemory_limit = 1")
    assert "threads = 1000" in config and "memory_limit = 1" in config
    hostile = with_metadata(segmenter, folder / "h.safetensors", config=config)
    succeeds("predict", hostile, image, "--output", folder / "out")


@pytest.mark.parametrize("name", ["densenet_bc994_k100", "densenet_bc9994_k1", "densenet_bc994_k1024"])
def test_a_stored_name_of_a_huge_network_costs_nothing(folder, classifier, image, name):
    config = config_of(classifier).replace('name = "resnet18_narrow"', f'name = "{name}"')
    assert name in config
    hostile = with_metadata(classifier, folder / "h.safetensors", config=config)
    started = time.monotonic()
    fails(CHECKPOINT, "predict", hostile, image, says=[name, "weights"])
    assert time.monotonic() - started < 5
    if name.endswith("1024"):
        fails(USAGE, "train", "--model", name, "--output", folder / "run", says=[name, "weights, the limit is 2147483648"])


def test_stored_paths_are_of_no_use_to_predict(folder, classifier, image):
    lines = [line for line in config_of(classifier).splitlines() if not line.startswith("root")]
    config = "\n".join(lines).replace("[data]", '[data]\nroot = "/proc/self"')
    hostile = with_metadata(classifier, folder / "h.safetensors", config=config)
    succeeds("predict", hostile, image)
    exported = folder / "e.safetensors"
    succeeds("export", hostile, "--output", exported)
    assert "/proc/self" not in config_of(exported)


@pytest.mark.parametrize("text", [".".join(["a"] * 200_000) + " = 1", "[" + ".".join(["a"] * 200_000) + "]",
                                  "a = " + "[" * 100_000, "a = " + "{a=" * 100_000, "a." * 30 + "a = 1"],
                         ids=["dotted", "header", "brackets", "braces", "short"])
def test_deep_toml_is_refused_before_it_is_parsed(folder, segmenter, image, text):
    config = write(folder / "d.toml", text.encode())
    fails(USAGE, "train", "--config", config, "--dry-run", "--output", folder / "no", says=["d.toml:1", "nested too deeply"])
    hostile = with_metadata(segmenter, folder / "h.safetensors", config=text)
    for command in (["info", hostile], ["predict", hostile, image, "--output", folder / "no"]):
        fails(CHECKPOINT, *command, says=["stored configuration", "nested too deeply"])


def test_strings_and_comments_may_have_any_brackets_and_dots(folder):
    names = '["' + "." * 50 + '", \'' + "[" * 50 + "', \"\"\"\n" + "{." * 50 + '"""""]'
    config = write(folder / "c.toml", ("# " + "a." * 50 + "[" * 50 + f'\n[model]\nclasses = 3\nclass_names = {names}\n'
                                       '[data]\nmean = [0.1, 0.2, 0.3]\n').encode())
    succeeds("train", "--config", config, "--dry-run", "--output", folder / "no")


@pytest.mark.parametrize("letter", "éぃﷺ漢")
def test_letters_beyond_ascii_belong_into_quotes(folder, letter):
    config = write(folder / "c.toml", f"[model]\nclasses = {letter}1\n".encode())
    fails(USAGE, "train", "--config", config, "--dry-run", "--output", folder / "no", says=["c.toml:2"])
    names = f'["{letter}", """a\\\n{letter}"""]'  # a backslash at the end of a line skips white space
    config = write(folder / "c.toml", f"[model]\nclasses = 2\nclass_names = {names}\n".encode())
    said = succeeds("train", "--config", config, "--dry-run", "--output", folder / "no").stdout
    assert f'class_names = ["{letter}", "a{letter}"]' in said


def test_a_configuration_of_megabytes_is_refused_at_once(folder):
    config = write(folder / "c.toml", b"a" * (50 << 20) + b" = 1\n")
    started = time.monotonic()
    fails(USAGE, "train", "--config", config, "--dry-run", "--output", folder / "no", says=["c.toml", "bytes"])
    assert time.monotonic() - started < 5


def test_a_huge_unknown_key_is_shown_shortened(folder):
    config = write(folder / "c.toml", b"[model]\n" + b"k" * 3_000_000 + b" = 1\n")
    line = fails(USAGE, "train", "--config", config, "--dry-run", "--output", folder / "no", says=["unknown key", "kkk..."])
    assert len(line) < 2000


def test_a_file_of_8_gb_is_judged_by_its_header(folder, image):
    path = write_header(folder / "s.safetensors", {"w": {"dtype": "U8", "shape": [1 << 33], "data_offsets": [0, 1 << 33]}})
    with open(path, "ab") as file:
        file.truncate(path.stat().st_size + (1 << 33))
    config = write(folder / "c.toml", b"[model]\nname = 'resnet18_narrow'\nclasses = 2\n")
    started = time.monotonic()
    fails(CHECKPOINT, "info", path, says=["holds no configuration"])
    fails(CHECKPOINT, "predict", path, image, "--config", config, says=["does not fit"])
    fails(CHECKPOINT, "import", path, "--model", "resnet18_narrow", "--output", folder / "o.safetensors", says=["does not fit"])
    fails(CHECKPOINT, "train", *TINY, "--weights", path, "--output", folder / "run", "--quiet", says=["does not fit"])
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("shape", [[10**9, 0], [900_000, 1]])
def test_claimed_classes_cost_nothing(folder, shape):
    values = 4 * shape[0] * shape[1]
    path = write_header(folder / "c.safetensors", {"fc.weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, values]}},
                        b"\0" * values)
    fails(CHECKPOINT, "import", path, "--model", "resnet50", "--output", folder / "o.safetensors", says=["does not fit"])


def test_a_stored_number_of_classes_is_compared_with_the_file(folder, classifier, image):
    lines = [line for line in config_of(classifier).splitlines() if not line.startswith("class_names")]
    config = "\n".join("classes = 1000000" if line.startswith("classes") else line for line in lines)
    hostile = with_metadata(classifier, folder / "h.safetensors", config=config)
    fails(CHECKPOINT, "predict", hostile, image, says=["fc.weight", "1000000"])


def test_escape_sequences_in_names_are_escaped(folder, classifier, image):
    config = "\n".join('class_names = ["b\\nline\\r2", "a\\u001B[31mRED\\u001B]0;T\\u0007\\u009B1m"]' if line.startswith("class_names")
                       else line for line in config_of(classifier).splitlines())
    hostile = with_metadata(classifier, folder / "h.safetensors", config=config)
    evil = write(folder / "in/e\x1b[2J\nvil.png", image.read_bytes())
    said = succeeds("predict", hostile, evil).stdout
    assert said.count("\n") == 1 and "\x1b" not in said and "\x9b" not in said and "\x07" not in said
    assert "b\\nline\\r2" in said and "\\x1b[31mRED" in said and "e\\x1b[2J\\nvil.png" in said
    described = succeeds("info", hostile).stdout
    assert "\x1b" not in described and "\x9b" not in described and "\\x1b[31mRED" in described
    write(folder / "in/x\x1b[2J\nline.tif", b"")
    told = succeeds("predict", classifier, folder / "in").stderr
    assert "skipped 1" in told and "\x1b" not in told and told.count("\n") == 1
    header, values = read_header(classifier)
    header["x\x1b[2J\ny"] = header.pop("fc.bias")
    line = fails(CHECKPOINT, "predict", write_header(folder / "t.safetensors", header, values), image, says=["x\\x1b[2J\\ny"])
    assert "\x1b" not in line
    line = fails(USAGE, "predict", hostile, image, "--fla\x1b[2J\ng", says=["--fla\\x1b[2J\\ng"])


def test_file_names_that_are_not_utf8_work(folder, classifier, segmenter, image):
    bad = write(folder / f"in/{NOT_UTF8}.png", image.read_bytes())
    said = json.loads(succeeds("predict", classifier, bad, "--json").stdout)
    assert said[0]["image"].endswith("bad\\xff\\xfe.png")
    copy = write(folder / f"{NOT_UTF8}.safetensors", classifier.read_bytes())
    assert json.loads(succeeds("info", copy, "--json").stdout)["checkpoint"].endswith("bad\\xff\\xfe.safetensors")
    succeeds("predict", classifier, bad, "--logits", folder / "l.safetensors")
    assert any(name.endswith("bad\\xff\\xfe.png") for name in read_header(folder / "l.safetensors")[0])
    succeeds("predict", segmenter, bad, "--output", folder / f"out{NOT_UTF8}", "--json")
    assert (folder / f"out{NOT_UTF8}" / f"{NOT_UTF8}.png").exists()


def test_paths_that_a_checkpoint_would_store_must_be_utf8(folder):
    data = segmentation_folder(folder / NOT_UTF8)
    fails(USAGE, "train", "--model", "deeplabv3_resnet18_narrow", "--data", "segmentation_folder", "--classes", "3",
          "--data-root", data, "--output", folder / "run", says=["--data-root", "UTF-8", "bad\\xff\\xfe"])
    assert not (folder / "run").exists()
    data = image_folder(folder / "data", classes=("cat", NOT_UTF8))
    fails(DATA_ERROR, "train", *TINY_CLASSIFIER, "--data-root", data, "--output", folder / "run", says=["UTF-8", "bad\\xff"])
    assert not (folder / "run").exists()


def test_an_image_too_small_for_a_densenet_is_refused(folder):
    data = image_folder(folder / "data")
    succeeds("train", "--model", "densenet_bc10_k2", "--data", "image_folder", "--data-root", data, "--batch", "4", "--threads",
             "1", "--evaluate-every", "0", "--max-steps", "1", "--output", folder / "run", "--quiet")
    for shape in ((1, 500, 3), (1, 1, 3), (3, 7, 3)):
        small = write(folder / "small.png", png(np.zeros(shape)))
        fails(USAGE, "predict", folder / "run/checkpoint.safetensors", small, says=["at least 4 pixels"])
    succeeds("predict", folder / "run/checkpoint.safetensors", write(folder / "four.png", png(np.zeros((4, 4, 3)))))


@pytest.mark.parametrize("gib", [6, 15])
def test_more_threads_than_the_system_starts_are_refused(folder, segmenter, image, gib):
    def few():
        resource.setrlimit(resource.RLIMIT_AS, (gib << 30, gib << 30))
    fails(MEMORY, "train", *TINY, "--threads", "1024", "--max-steps", "1", "--output", folder / "run",
          preexec_fn=few, says=["--threads", "1024"])


def test_a_path_that_the_system_refuses_is_an_error_of_the_data(folder, segmenter):
    os.symlink("loop", folder / "loop")
    fails(DATA_ERROR, "predict", segmenter, folder / "loop", "--output", folder / "out", says=["loop"])
    fails(DATA_ERROR, "predict", segmenter, "n" * 300, "--output", folder / "out", says=["too long"])


def test_predict_does_not_replace_its_own_checkpoint(folder, classifier, image):
    fails(USAGE, "predict", classifier, image, "--logits", classifier, says=["--logits", "checkpoint"])
    fails(USAGE, "predict", classifier, image, "--logits", image, says=["--logits", "input"])


@pytest.mark.parametrize("entry, value", [("step", "-1"), ("step", str(2**62)), ("batches_per_epoch", "-3"), ("batch_size", "-1")])
def test_a_tampered_number_is_an_error_of_the_checkpoint(folder, segmenter, entry, value):
    header, values = read_header(segmenter)
    header["__metadata__"][entry] = value
    write(folder / "run/config.toml", config_of(segmenter).encode())
    write_header(folder / "run/checkpoint.safetensors", header, values)
    write(folder / "run/log.jsonl", b'{"type":5,"step":1}\n')
    fails(CHECKPOINT, "train", "--resume", "--output", folder / "run", "--quiet", says=[entry, "damaged"])


@pytest.mark.parametrize("changes, says", [
    ({'activation = "leaky_relu"': 'activation = "silu"'}, ["slope has no effect", "which is silu"]),
    ({'activation = "leaky_relu"': 'activation = "silu"', "slope = 0.01\n": "", "inplace_2": "inplace_1"}, ["strategy", "silu"]),
    ({"output_stride = 16": "output_stride = 12"}, ["output_stride", "8 or 16"])])
def test_a_stored_contradiction_is_an_error_of_the_checkpoint(folder, segmenter, image, changes, says):
    text = config_of(segmenter)
    for old, new in changes.items():
        assert old in text, text
        text = text.replace(old, new)
    bad = with_metadata(segmenter, folder / "bad.safetensors", config=text)
    fails(CHECKPOINT, "predict", bad, image, "--output", folder / "out", says=["stored configuration", *says])


def test_a_contradiction_in_a_run_that_resumes_is_an_error_of_the_checkpoint(folder, segmenter):
    text = config_of(segmenter).replace("output_stride = 16", "output_stride = 12")
    (folder / "run").mkdir()
    with_metadata(segmenter, folder / "run/checkpoint.safetensors", config=text)
    fails(CHECKPOINT, "train", "--resume", "--output", folder / "run", "--quiet",
          says=["checkpoint.safetensors (stored configuration)", "output_stride", "8 or 16"])


@pytest.mark.parametrize("entry, value", [("growth_tracker", str(2**31 - 1)), ("growth_tracker", "-1"), ("growth_tracker", "1e3"),
                                          ("skipped_in_a_row", "-1"), ("skipped_in_a_row", str(2**40)), ("loss_scale", "nan"),
                                          ("loss_scale", "inf"), ("loss_scale", "0"), ("loss_scale", "-8")])
def test_a_tampered_state_of_the_loss_scale_is_an_error_of_the_checkpoint(folder, in_f16, entry, value):
    header, values = read_header(in_f16 / "checkpoint.safetensors")
    assert entry in header["__metadata__"]
    header["__metadata__"][entry] = value
    write_header(folder / "run/checkpoint.safetensors", header, values)
    fails(CHECKPOINT, "train", "--resume", "--max-steps", "2", "--output", folder / "run", "--quiet", says=[entry])


def test_info_shows_no_number_that_no_checkpoint_has(folder, segmenter):
    hostile = with_metadata(segmenter, folder / "h.safetensors", step=str(2**63 - 1))
    assert str(2**63 - 1) not in succeeds("info", hostile).stdout


def test_two_keys_that_become_one_are_refused(folder, classifier, image):
    header, values = read_header(classifier)
    bias = header["fc.bias"]["data_offsets"]
    size = bias[1] - bias[0]
    header["module.fc.bias"] = {"dtype": "F32", "shape": header["fc.bias"]["shape"],
                                "data_offsets": [len(values), len(values) + size]}
    fails(CHECKPOINT, "predict", write_header(folder / "t.safetensors", header, values + b"\0" * size), image,
          says=["fc.bias", "two tensors"])


@pytest.mark.parametrize("make, says", [
    ("torch.zeros(1).expand(1 << 40)", "expanded"),
    ("torch.zeros(1 << 40, device='meta')", "no values"),
], ids=["stride 0", "meta"])
def test_a_tensor_that_claims_more_than_it_stores_is_refused(folder, make, says):
    torch = pytest.importorskip("torch")
    torch.save({"fc.weight": eval(make, {"torch": torch})}, folder / "b.pth")
    fails(CHECKPOINT, "import", folder / "b.pth", "--model", "resnet18", "--output", folder / "o.safetensors", says=[says])


def test_an_old_file_that_claims_memory_is_refused(folder):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.zeros(77)}, folder / "a.pth", _use_new_zipfile_serialization=False)
    data = (folder / "a.pth").read_bytes()
    size = data.index(b"K\x00K\x4d\x85") + 2  # offset 0, size (77,)
    write(folder / "b.pth", data[:size] + b"\x8a\x05\x00\x00\x00\x00\x03" + data[size + 2:])  # 12 * 2^30 numbers
    started = time.monotonic()
    fails(CHECKPOINT, "import", folder / "b.pth", "--model", "resnet18", "--output", folder / "o.safetensors",
          says=["more memory than its bytes"])
    assert time.monotonic() - started < 20


def test_import_runs_python_apart_from_the_user_environment(folder):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.zeros(2)}, folder / "a.pth")
    write(folder / "path/json.py", b"open('PWNED', 'w')\nraise SystemExit(9)\n")
    fails(CHECKPOINT, "import", folder / "a.pth", "--model", "resnet18", "--output", folder / "o.safetensors", cwd=folder,
          variables={"PYTHONPATH": str(folder / "path")}, says=["does not fit"])
    assert not (folder / "PWNED").exists()
