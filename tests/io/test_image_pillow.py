"""Images of every kind are read as Pillow reads them, to the byte."""
import os
import pathlib
import subprocess

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")

PROGRAM = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", "build/release")) / "tests/io/image_bytes_program"
ORIENTATION = 0x0112


def picture(channels, height=37, width=53, seed=1):
    """u8 (H, W, channels) with edges and noise."""
    random = np.random.default_rng(seed)
    smooth = np.linspace(0, 200, width)[None, :, None] + np.linspace(0, 40, height)[:, None, None]
    return (smooth + random.integers(0, 56, (height, width, channels))).clip(0, 255).astype(np.uint8)


def rgb():
    return Image.fromarray(picture(3))


def oriented(orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return dict(image=rgb(), format="JPEG", exif=exif)


KINDS = {
    "jpeg": dict(image=rgb(), format="JPEG"),
    "jpeg_444": dict(image=rgb(), format="JPEG", subsampling=0),
    "jpeg_422": dict(image=rgb(), format="JPEG", subsampling=1),
    "progressive": dict(image=rgb(), format="JPEG", progressive=True),
    "grey_jpeg": dict(image=Image.fromarray(picture(1)[..., 0]), format="JPEG"),
    "cmyk_jpeg": dict(image=Image.fromarray(picture(4), "CMYK"), format="JPEG"),
    "one_pixel_jpeg": dict(image=Image.new("RGB", (1, 1), (200, 10, 60)), format="JPEG"),
    "one_pixel_png": dict(image=Image.new("RGB", (1, 1), (200, 10, 60)), format="PNG"),
    "png": dict(image=rgb(), format="PNG"),
    "grey_png": dict(image=Image.fromarray(picture(1)[..., 0]), format="PNG"),
    "palette_png": dict(image=rgb().quantize(64), format="PNG"),
    "two_colours_png": dict(image=rgb().convert("1"), format="PNG"),
    "alpha_png": dict(image=Image.fromarray(picture(4), "RGBA"), format="PNG"),
    "grey_alpha_png": dict(image=Image.fromarray(picture(4), "RGBA").convert("LA"), format="PNG"),
    **{f"orientation_{i}": oriented(i) for i in range(1, 9)},
}


def ours(path):
    result = subprocess.run([PROGRAM, path], capture_output=True)
    assert result.returncode == 0, result.stderr
    size, pixels = result.stdout.split(b"\n", 1)
    height, width = map(int, size.split())
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_pixels_are_those_of_pillow(tmp_path, kind):
    options = dict(KINDS[kind])
    options.pop("image").save(tmp_path / "image", **options)
    with Image.open(tmp_path / "image") as opened:
        wanted = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    np.testing.assert_array_equal(ours(tmp_path / "image"), wanted)


def test_16_bits_are_rounded_to_8(tmp_path):
    """Pillow cuts them off where there is colour, and clips them at 255 where there is none."""
    values = np.arange(0, 65536, 13, dtype=np.uint16)[None]
    Image.fromarray(values).save(tmp_path / "grey.png")
    wanted = np.round(values / 257).astype(np.uint8)
    for channel in range(3):
        np.testing.assert_array_equal(ours(tmp_path / "grey.png")[..., channel], wanted)
