"""What the tests share of scripts that write a page from the measurements beside it."""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def run_script(path, *arguments):
    """(exit status, what it said on stderr)"""
    result = subprocess.run([sys.executable, path, *map(str, arguments)], capture_output=True, text=True)
    return result.returncode, result.stderr


def change(path, do):
    """Has `do` change what a JSON file holds."""
    content = json.loads(path.read_text())
    do(content)
    path.write_text(json.dumps(content))
