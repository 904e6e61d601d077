"""Python's tarfile and our reader find the same members in archives of every format that tarfile writes."""
import io
import os
import pathlib
import random
import subprocess
import tarfile

import pytest

LIST = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", "build/release")) / "tests/io/tar_list_program"
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def write(path, form, long_names=True):
    rng = random.Random(7)
    names = [f"{i:06d}.{ending}" for i in range(20) for ending in ("jpg", "cls")]
    names += ["folder/" * 20 + "x" * 90 + ".jpg"] if long_names else []  # 230 characters: ustar's prefix
    if long_names and form != tarfile.USTAR_FORMAT:
        names += ["y" * 400, "größe/ü.png"]
    with tarfile.open(path, "w", format=form) as archive:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE):
            other = tarfile.TarInfo(f"other{kind.decode()}")
            other.type, other.linkname = kind, "000001.jpg"
            archive.addfile(other)
        for name in names:
            contents = rng.randbytes(rng.choice([0, 1, 511, 512, 513, 5000]))
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            if form == tarfile.PAX_FORMAT:
                member.pax_headers = {"comment": "a time\nof two lines"}
            archive.addfile(member, io.BytesIO(contents))


def listed(path):
    result = subprocess.run([LIST, path], capture_output=True)
    assert result.returncode == 0, result.stderr
    members, rest = [], result.stdout
    while rest:
        line, rest = rest.split(b"\n", 1)
        offset, size, name = line.split(b" ", 2)
        members.append((name.decode(), int(offset), rest[:int(size)]))
        rest = rest[int(size):]
    return members


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_every_member_is_found_where_tarfile_finds_it(tmp_path, form):
    write(tmp_path / "a.tar", form)
    with tarfile.open(tmp_path / "a.tar") as archive:
        wanted = [(m.name, m.offset_data, archive.extractfile(m).read()) for m in archive if m.isreg()]
    assert len(wanted) > 40
    assert listed(tmp_path / "a.tar") == wanted


def test_a_size_in_base_256_is_read(tmp_path):
    """GNU tar's form of sizes above 8 GiB, here of a small one."""
    write(tmp_path / "a.tar", tarfile.GNU_FORMAT)
    archive = bytearray((tmp_path / "a.tar").read_bytes())
    at = archive.index(b"000000.cls")
    size = int(archive[at + 124:at + 135], 8)
    archive[at + 124:at + 136] = b"\x80" + size.to_bytes(11, "big")
    archive[at + 148:at + 156] = b" " * 8
    archive[at + 148:at + 156] = b"%06o\0 " % sum(archive[at:at + 512])
    (tmp_path / "b.tar").write_bytes(archive)
    assert listed(tmp_path / "b.tar") == listed(tmp_path / "a.tar")


def test_a_cut_anywhere_is_one_line_that_names_the_archive(tmp_path):
    write(tmp_path / "a.tar", tarfile.PAX_FORMAT)
    whole = (tmp_path / "a.tar").read_bytes()
    used = len(whole.rstrip(b"\0"))
    rng = random.Random(3)
    cuts = [0, 1, 512, *(rng.randrange(used) for _ in range(200))]
    paths = [tmp_path / f"{i}-cut.tar" for i in range(len(cuts))]
    for path, cut in zip(paths, cuts):
        path.write_bytes(whole[:cut])
    result = subprocess.run([LIST, *paths], capture_output=True, text=True, errors="replace")
    lines = result.stderr.splitlines()
    assert result.returncode == 1 and len(lines) == len(cuts)
    for path, line in zip(paths, lines):
        assert str(path) in line and "truncated" in line
