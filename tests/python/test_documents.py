"""Every Python example of the documents runs."""
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = [(path, i, code) for path in ("docs/python.md", "docs/inplace_abn.md", "docs/choose.md", "python/README.md")
            for i, code in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.S))]


@pytest.mark.parametrize("path, number, code", EXAMPLES, ids=[f"{path}_{i}" for path, i, _ in EXAMPLES])
def test_the_example_runs(path, number, code):
    exec(compile(code, f"{path}, example {number}", "exec"), {})  # noqa: S102: our own text
