"""The parts that the tests of the pages share."""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[3]
sys.path.append(str(ROOT / "benchmarks"))

from support import processor_name  # noqa: E402, F401


def pages(*arguments):
    """Runs benchmarks/pages/pages: (exit status, stderr)"""
    result = subprocess.run([sys.executable, ROOT / "benchmarks/pages/pages", *map(str, arguments)], capture_output=True,
                            text=True)
    return result.returncode, result.stderr


def change(path, do):
    """Lets `do` change the content of a JSON file."""
    content = json.loads(path.read_text())
    do(content)
    path.write_text(json.dumps(content))


def line_of(page, start):
    return next(line for line in page.read_text().splitlines() if line.startswith(start))
