"""Resized images and labels, and changed colours, equal Pillow's."""

import os
import pathlib
import subprocess

import numpy
import pytest

Image = pytest.importorskip("PIL.Image", reason="the Python package pillow is not installed")
ImageEnhance = pytest.importorskip("PIL.ImageEnhance")

PROGRAM = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", "build/release")) / "tests/data/pillow_program"
SOURCES = [(1, 1), (1, 7), (5, 3), (37, 53), (64, 48), (375, 500)]
TARGETS = [(1, 1), (2, 9), (7, 300), (31, 32), (33, 17), (64, 64), (224, 224), (256, 341), (701, 500)]
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
FACTORS = [0.0, 0.2, 0.6, 0.97, 1.04, 1.4, 2.0]


def noise(height, width, channels=3):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return numpy.random.default_rng(height * 1000 + width).integers(0, 256, shape, dtype=numpy.uint8)


def smooth(height, width):
    """A picture like a photo: neighbours differ by a few levels."""
    y, x = numpy.mgrid[0:height, 0:width]
    waves = [127 + 60 * numpy.sin(x / 9 + c) + 60 * numpy.cos(y / 13 - c) for c in range(3)]
    return numpy.stack(waves, axis=2).astype(numpy.uint8)


def run(jobs, tmp_path):
    """Runs one job per (words, source) and returns the pictures that the program wrote."""
    lines = []
    for i, (what, source, parameters) in enumerate(jobs):
        Image.fromarray(source).save(tmp_path / f"{i}.png", compress_level=0)
        lines.append(" ".join([what, str(tmp_path / f"{i}.png"), str(tmp_path / f"{i}.out.png"),
                               *map(str, parameters)]))
    (tmp_path / "jobs").write_text("\n".join(lines) + "\n")
    done = subprocess.run([PROGRAM, tmp_path / "jobs"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [numpy.asarray(Image.open(tmp_path / f"{i}.out.png")) for i in range(len(jobs))]


def worst(a, b):
    assert a.shape == b.shape
    return int(numpy.abs(a.astype(int) - b.astype(int)).max())


@pytest.mark.parametrize("filter_name", FILTERS)
def test_one_pass_after_the_other_equals_pillow_bit_by_bit(filter_name, tmp_path):
    chosen = FILTERS[filter_name]
    cases = [(source, target) for source in SOURCES for target in TARGETS]
    results = run([("resize", noise(*source), (*target, filter_name)) for source, target in cases], tmp_path)
    for (source, (height, width)), got in zip(cases, results, strict=True):
        columns = Image.fromarray(noise(*source)).resize((width, source[0]), chosen)
        want = numpy.asarray(columns.resize((width, height), chosen))
        assert worst(got, want) == 0, f"{source} -> {(height, width)}"


@pytest.mark.parametrize("filter_name", FILTERS)
def test_a_resize_equals_pillow_to_one_grey_level(filter_name, tmp_path):
    """Pillow chooses the order of its passes; the rounding between them is all that may differ."""
    cases = [(source, target) for source in SOURCES for target in TARGETS]
    results = run([("resize", smooth(*source), (*target, filter_name)) for source, target in cases], tmp_path)
    for (source, (height, width)), got in zip(cases, results, strict=True):
        want = numpy.asarray(Image.fromarray(smooth(*source)).resize((width, height), FILTERS[filter_name]))
        assert worst(got, want) <= 1, f"{source} -> {(height, width)}"


def test_sizes_of_training_equal_pillow_bit_by_bit(tmp_path):
    """The short side becomes 256, as in the recipes for ImageNet."""
    for source in [(375, 500), (500, 333), (256, 256), (300, 1000), (120, 160)]:
        scale = 256 / min(source)
        target = (int(source[0] * scale), int(source[1] * scale))
        (got,) = run([("resize", noise(*source), (*target, "bilinear"))], tmp_path)
        want = Image.fromarray(noise(*source)).resize(target[::-1], Image.Resampling.BILINEAR)
        assert worst(got, numpy.asarray(want)) == 0, source


def has_one_nearest(source, size):
    """Whether the centre of each of `size` pixels lies inside a source pixel, not between two."""
    return (2 * numpy.arange(size) + 1) * source % (2 * size) != 0


def test_labels_are_scaled_as_pillow_does_with_nearest(tmp_path):
    cases = [(source, target) for source in SOURCES for target in TARGETS]
    results = run([("label", noise(*source, channels=1), target) for source, target in cases], tmp_path)
    for (source, (height, width)), got in zip(cases, results, strict=True):
        label = Image.fromarray(noise(*source, channels=1))
        want = numpy.asarray(label.resize((width, height), Image.Resampling.NEAREST))
        rows, columns = has_one_nearest(source[0], height), has_one_nearest(source[1], width)
        same = (got == want) | ~rows[:, None] | ~columns[None, :]
        assert same.all(), f"{source} -> {(height, width)}"


@pytest.mark.parametrize("kind, enhance", [("brightness", ImageEnhance.Brightness),
                                           ("contrast", ImageEnhance.Contrast),
                                           ("saturation", ImageEnhance.Color)])
def test_colours_change_as_in_pillow(kind, enhance, tmp_path):
    cases = [(picture, factor) for picture in (noise(37, 53), smooth(37, 53)) for factor in FACTORS]
    results = run([(kind, picture, (factor,)) for picture, factor in cases], tmp_path)
    for (picture, factor), got in zip(cases, results, strict=True):
        want = enhance(Image.fromarray(picture)).enhance(factor)
        assert worst(got, numpy.asarray(want)) == 0, factor
