"""Checks that passed, remembered by a digest of all that decides them, so that they need not run again on the same.

A memory is an empty file CHECK-DIGEST in palimpsest-checks within the compiler cache's folder: whoever keeps that folder
for the next run keeps both. Without a compiler cache (none installed, or CCACHE_DISABLE) it lies in build/checks. Only a
success is remembered; what no run asked for in 90 days is forgotten.
"""
import hashlib
import os
import pathlib
import shutil
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
KEPT_SECONDS = 90 * 24 * 3600


def folder():
    if shutil.which("ccache") and "CCACHE_DISABLE" not in os.environ:
        answer = subprocess.run(["ccache", "-k", "cache_dir"], capture_output=True, text=True)
        if answer.returncode == 0 and answer.stdout.strip():
            return pathlib.Path(answer.stdout.strip()) / "palimpsest-checks"
    return ROOT / "build/checks"


def digest(parts):
    """Of texts, in which the project's folder does not matter, and of the contents of files (pathlib.Path)."""
    whole = hashlib.sha256()
    for part in parts:
        if isinstance(part, pathlib.Path):
            with open(part, "rb") as file:
                one = hashlib.file_digest(file, "sha256")
        else:
            one = hashlib.sha256(part.replace(str(ROOT), "<project>").encode())
        whole.update(one.digest())
    return whole.hexdigest()


def version(program):
    """What `program --version` says; another one is another check."""
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout


def passed(check, digest_of_check):
    try:
        os.utime(folder() / f"{check}-{digest_of_check}")  # asked for: kept
    except OSError:
        return False
    return True


def remember(check, digest_of_check):
    """A folder that cannot be written costs the next run its time, not this one its success."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        for memory in folder().iterdir():
            if memory.stat().st_mtime < time.time() - KEPT_SECONDS:
                memory.unlink()
        (folder() / f"{check}-{digest_of_check}").touch()
    except OSError as error:
        print(f"{check}: passed, but not remembered: {error}")
