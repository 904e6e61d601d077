"""Remembers checks that passed, so that they do not run again on the same inputs.

The key is a digest of every input that decides the outcome. A passed check is an empty file CHECK-DIGEST in the folder
palimpsest-checks inside the compiler cache's folder: a run that keeps the compiler cache keeps these files too. Without
a compiler cache (not installed, or CCACHE_DISABLE is set) the folder is build/checks. Only successes are remembered. A
file that no run asked for in 90 days is removed.
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
    """The digest of texts and of the contents of files (pathlib.Path). The project's path in a text does not matter."""
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
    """The output of `program --version`: another version is another check."""
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout


def passed(check, digest_of_check):
    try:
        os.utime(folder() / f"{check}-{digest_of_check}")  # this run asked for it: keep it 90 days more
    except OSError:
        return False
    return True


def remember(check, digest_of_check):
    """If the folder cannot be written, this run still succeeds, and the next run repeats the check."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        for memory in folder().iterdir():
            if memory.stat().st_mtime < time.time() - KEPT_SECONDS:
                memory.unlink()
        (folder() / f"{check}-{digest_of_check}").touch()
    except OSError as error:
        print(f"{check}: passed, but not remembered: {error}")
