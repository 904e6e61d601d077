"""palimpsest report: the page about runs, in a browser too; and the events for TensorBoard, read by its own package."""
import html.parser
import json
import shutil

import numpy as np
import pytest

import browser
from cli_support import (CHECKPOINT, OUTPUT, TINY, TINY_CLASSIFIER, USAGE, fails, image_folder, succeeds, write)

EVALUATED = [*TINY, "--evaluate-every", "1", "--quiet"]
EVENTS = "events.out.tfevents.{:010}.palimpsest"


class Checker(html.parser.HTMLParser):
    """Checks that elements are closed in order, and that nothing is loaded. Keeps the text and the tags."""
    VOID = {"meta", "img", "br"}

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.sources = [], [], "", []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), (tag, names)
        self.sources += [value for name, value in attributes if name in ("src", "href", "xlink:href", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        self.text += data


def checked(page):
    """Reads a page that must be whole and load nothing."""
    result = Checker(page.read_text())
    assert all(source.startswith("data:image/png;base64,") for source in result.sources)
    assert not {"script", "link", "iframe", "object"} & set(result.tags)
    return result


NASTY = ["<script>alert(1)</script>", "a&b\"'", "long" * 60, "Straße"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of a segmentation network with names that must not break a page, and one of a classifier."""
    folder = tmp_path_factory.mktemp("runs")
    names = ["--class-names", ",".join([*NASTY, *(f"class {i}" for i in range(7))])]
    succeeds("train", *EVALUATED, *names, "--tensorboard", "--histogram-every", "1", "--epochs", "3", "--output",
             folder / "first")
    succeeds("train", *EVALUATED, "--strategy", "standard", "--lr", "0.02", "--output", folder / "second <b>")
    data = image_folder(folder / "data")
    succeeds("train", *TINY_CLASSIFIER, "--evaluate-every", "1", "--quiet", "--tensorboard", "--data-root", data, "--output",
             folder / "classifier")
    yield folder
    for checkpoint in folder.glob("*/checkpoint.safetensors"):  # too large for pytest to keep
        checkpoint.unlink()


@pytest.fixture(scope="module")
def page(runs):
    """The page of all three runs."""
    succeeds("report", *(runs / name for name in ("first", "second <b>", "classifier")), "--output", runs / "all.html")
    return runs / "all.html"


def test_the_page_of_one_run_is_in_its_folder(runs):
    result = succeeds("report", runs / "first")
    assert result.stdout == f"report: {runs / 'first/report.html'}\n"
    page = checked(runs / "first/report.html")
    for part in ("Memory over one step", "Training loss", "Mean IoU", "Learning rate", "Throughput", "Peak memory",
                 "Classes", "Confusion", "Pictures", "Gradients by exponent", "Settings", "optimizer.lr",
                 "output.tensorboard", "Complete: 6 steps", *NASTY):
        assert part in page.text, part
    assert page.tags.count("img") == 2 * 3  # both images of validation: image, truth, prediction


def test_runs_stand_side_by_side_whatever_their_task(page):
    text = checked(page).text
    for part in ("Mean IoU on the validation images", "Top-1 accuracy on the validation images", "second <b>",
                 "Settings that differ", "settings that all runs share", "truth: "):
        assert part in text, part
    differs = text[text.index("Settings that differ"):text.index("settings that all runs share")]
    for key in ("optimizer.lr", "model.strategy", "data.kind"):
        assert key in differs
    assert "optimizer.momentum" not in differs


def test_a_report_needs_neither_data_nor_network(runs, folder):
    for name in ("log.jsonl", "evaluation.safetensors"):
        shutil.copy(runs / "first" / name, folder)
    succeeds("report", folder)
    assert "Confusion" in checked(folder / "report.html").text


def test_an_older_an_unfinished_and_a_damaged_run_are_pages_that_say_so(runs, folder):
    run = folder / "run"
    lines = [json.loads(line) for line in (runs / "first/log.jsonl").read_text().splitlines()]
    for line in lines:  # as older programs wrote it
        line.pop("peak_bytes", None)
        if line["type"] == "step":
            line["eta_seconds"] = 725
    lines = [json.dumps(line) for line in lines if line["type"] != "exponents"]
    write(run / "log.jsonl", "\n".join(["{\"type\": ", *lines, "{\"ty"]).encode())
    write(run / "config.toml", b"[model]\nname = \"a thing of the future\"\nshiny = [1, 0.05]\n")
    result = succeeds("report", run)
    text = checked(run / "report.html").text
    for part in ("Unfinished: 6 steps are done, in epoch 3; about 0:12:05 of training are left.",
                 "1 damaged line, which is left out; the first is line 1", "no step_memory.safetensors",
                 "no evaluation.safetensors"):
        assert part in text and part in result.stderr, part
    assert "model.shiny" in text and "[1, 0.05]" in text
    write(run / "config.toml", b"[model\n")
    write(run / "evaluation.safetensors", (runs / "first/evaluation.safetensors").read_bytes()[:-5])
    result = succeeds("report", run, "--overwrite")
    assert "config.toml:1: " in result.stderr and "evaluation.safetensors was left out" in result.stderr
    assert result.stderr.count("\n") == 5


def test_a_broken_configuration_beside_a_checkpoint_is_named(runs, folder):
    shutil.copytree(runs / "first", folder / "run")
    write(folder / "run/config.toml", b"[model\n")
    result = succeeds("report", folder / "run", "--overwrite")
    assert "config.toml was left out: " in result.stderr and "config.toml:1: " in result.stderr
    assert "optimizer.lr" in checked(folder / "run/report.html").text


@pytest.mark.parametrize("command, says", [
    (("report",), ["report needs the argument RUN", "output folders of trainings"]),
    (("report", "frist"), ["log.jsonl, config.toml or checkpoint.safetensors", "'frist' does not exist",
                           "did you mean 'first'?"]),
    (("report", "."), ["'.' holds none of them", "these do: './classifier', './first'"]),
    (("report", "first/log.jsonl"), ["'first/log.jsonl' is a file; name its folder 'first'"]),
])
def test_what_is_no_run_is_refused_with_the_nearest(runs, command, says):
    fails(USAGE if len(command) == 1 else CHECKPOINT, *command, cwd=runs, says=says)


def test_a_run_that_is_given_twice_is_refused(runs):
    fails(USAGE, "report", "first", "classifier/../first", cwd=runs, says=["'classifier/../first' is given twice"])


def test_a_page_that_is_there_or_cannot_be_written_is_an_output_error(runs, folder):
    write(folder / "page.html", b"precious")
    fails(OUTPUT, "report", runs / "first", "--output", folder / "page.html", says=["page.html' exists", "--overwrite"])
    assert (folder / "page.html").read_bytes() == b"precious"
    succeeds("report", runs / "first", "--output", folder / "page.html", "--overwrite")
    fails(OUTPUT, "report", runs / "first", "--output", folder / "page.html/below.html", says=["page.html"])


def test_a_file_that_is_no_page_is_not_replaced(runs, folder):
    write(folder / "thesis.tex", b"precious")
    fails(USAGE, "report", runs / "first", "--output", folder / "thesis.tex", "--overwrite", says=["--output", ".html", "thesis.tex"])
    assert (folder / "thesis.tex").read_bytes() == b"precious"


# In a browser.

@pytest.fixture(scope="module")
def chromium():
    program = browser.find()
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(browser.PROGRAMS)} is in PATH")
    opened = browser.Browser(program)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def many_classes(runs, tmp_path_factory):
    """A page of a run with 150 classes of long names."""
    from safetensors.numpy import save_file
    folder = tmp_path_factory.mktemp("many")
    names = [f"class number {i} {'with a name ' * (i % 9)}" for i in range(150)]
    confusion = np.random.default_rng(1).integers(0, 100, (150, 150)) + np.diag(np.full(150, 5000))
    metadata = {"step": "6", "epoch": "3", "segmentation": "true", "class_names": json.dumps(names), "picture_names": "[]"}
    save_file({"class_colors": np.zeros((150, 3), np.uint8), "confusion": confusion.astype(np.int64)},
              folder / "evaluation.safetensors", metadata)
    lines = [json.loads(line) for line in (runs / "first/log.jsonl").read_text().splitlines()]
    for line in lines:
        if line["type"] == "evaluation":
            line["class_iou"] = list(np.linspace(0, 1, 150))
    write(folder / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    succeeds("report", folder)
    return folder / "report.html"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("which", ["page", "many_classes"])
def test_the_page_fits_a_browser(request, chromium, which, width, dark):
    chromium.open(request.getfixturevalue(which), width, dark)
    assert chromium.complaints() == []
    assert [url for url in chromium.requests() if not url.startswith(("file:", "data:"))] == []
    assert chromium.ask("document.documentElement.scrollWidth") <= width
    charts = chromium.ask("""[...document.querySelectorAll('svg')].map(svg => ({
        name: svg.querySelector('title')?.textContent ?? '', description: svg.querySelector('desc').textContent,
        marks: svg.querySelectorAll('path, circle, g rect').length, width: svg.getBoundingClientRect().width}))""")
    assert len(charts) >= 7
    for chart in charts:
        assert chart["marks"] > 0 and chart["description"] and chart["width"] > 300, chart
    assert chromium.ask("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    # Nothing sticks out of what is not made to scroll.
    assert chromium.ask("""[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, svg') &&
        e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))""") == []


LUMINANCE = """(color => { const part = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 };
    const [r, g, b] = color.match(/[\\d.]+/g).map(Number); return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b) })"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_contrast_and_can_be_selected(chromium, page, dark):
    chromium.open(page, 1600, dark)
    paper = chromium.ask(f"{LUMINANCE}(getComputedStyle(document.body).backgroundColor)")
    assert paper < 0.05 if dark else paper > 0.9
    inks = chromium.ask(f"""[...document.querySelectorAll('h1, p, th, td, .note, summary, svg text')]
        .filter(e => !e.closest('svg g'))
        .map(e => [{LUMINANCE}(getComputedStyle(e)[e.closest('svg') ? 'fill' : 'color']), e.textContent])""")
    assert len(inks) > 100
    for ink, text in inks:
        low, high = sorted((ink, paper))
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"WCAG AA: {text}"
    chromium.ask("getSelection().selectAllChildren(document.body)")
    selected = chromium.ask("getSelection().toString()")
    assert "Training loss" in selected and "optimizer.lr" in selected


# TensorBoard.

@pytest.fixture(scope="module")
def read_events():
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def read(folder):
        events = module.EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0, "histograms": 0})
        events.Reload()
        return events

    return read


def log_of(run, kind):
    return [line for line in map(json.loads, (run / "log.jsonl").read_text().splitlines()) if line["type"] == kind]


def test_tensorboard_reads_the_log_of_a_run(runs, read_events):
    events = read_events(runs / "first")
    assert events.file_version == 2.0
    steps, evaluations = log_of(runs / "first", "step"), log_of(runs / "first", "evaluation")
    for tag, key, factor in [("train/loss", "loss", 1), ("train/lr", "lr", 1),
                             ("train/images_per_second", "images_per_second", 1),
                             ("memory/kept_MiB", "kept_bytes", 2**-20), ("memory/peak_MiB", "peak_bytes", 2**-20)]:
        scalars = events.Scalars(tag)
        assert [s.step for s in scalars] == [line["step"] for line in steps]
        assert [s.value for s in scalars] == [np.float32(line[key] * factor) for line in steps], tag
    for tag, key in [("evaluation/loss", "loss"), ("evaluation/mean_iou", "mean_iou"),
                     ("evaluation/pixel_accuracy", "pixel_accuracy")]:
        assert [(s.step, s.value) for s in events.Scalars(tag)] == [
            (line["step"], np.float32(line[key])) for line in evaluations]
    assert any(tag.startswith("class_iou/") for tag in events.Tags()["scalars"])


def test_tensorboard_shows_pictures_and_histograms(runs, read_events):
    image = pytest.importorskip("PIL.Image")
    import io
    events = read_events(runs / "first")
    tags = events.Tags()["images"]
    assert tags == ["image, truth, prediction/0", "image, truth, prediction/1"]
    pictures = events.Images(tags[0])
    assert [p.step for p in pictures] == [2, 4, 6]
    with image.open(io.BytesIO(pictures[0].encoded_image_string)) as picture:
        assert picture.size == (pictures[0].width, pictures[0].height) == (3 * 64 + 8, 48)
    logged = log_of(runs / "first", "exponents")[-1]
    last = events.Histograms("gradient exponents/weights")[-1]
    assert last.step == logged["step"]
    histogram = last.histogram_value
    assert histogram.num == sum(histogram.bucket) == round(sum(logged["weights"]["bars"]) * logged["weights"]["values"])
    assert histogram.bucket_limit[0] == logged["weights"]["lowest"] + 1


def test_tensorboard_shows_a_classifier(runs, read_events):
    tags = read_events(runs / "classifier").Tags()
    assert {"evaluation/top1", "evaluation/top5"} <= set(tags["scalars"]) and len(tags["images"]) == 4


def test_a_resumed_run_hides_the_steps_after_its_checkpoint(folder, read_events):
    arguments = ["train", *TINY, "--images", "20", "--quiet", "--tensorboard"]
    run, longer = folder / "run", folder / "longer"
    succeeds(*arguments, "--max-steps", "3", "--output", run)
    succeeds(*arguments, "--max-steps", "5", "--output", longer)
    # A run that was killed in its fifth step, after the checkpoint of the third: the last record is cut off.
    (run / EVENTS.format(0)).write_bytes((longer / EVENTS.format(0)).read_bytes()[:-3])
    assert [s.step for s in read_events(run).Scalars("train/loss")] == [1, 2, 3, 4]
    succeeds("train", "--resume", "--max-steps", "5", "--lr", "0.5", "--quiet", "--output", run)
    assert (run / EVENTS.format(4)).exists()
    scalars = read_events(run).Scalars("train/lr")
    assert [s.step for s in scalars] == [1, 2, 3, 4, 5]
    assert [s.value for s in scalars] == [np.float32(line["lr"]) for line in log_of(run, "step")]


def test_events_are_written_only_if_wanted_and_leave_the_checkpoint_as_it_is(folder):
    for name, flags in (("without", []), ("with", ["--tensorboard"])):
        succeeds("train", *TINY, *flags, "--quiet", "--output", folder / name)
    assert not list((folder / "without").glob("events*")) and list((folder / "with").glob("events*"))
    with_, without = ((folder / name / "checkpoint.safetensors").read_bytes() for name in ("with", "without"))
    assert with_ == without
