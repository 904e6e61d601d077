#!/usr/bin/env python3
"""Writes the C++ programs of the docs to files, so that the build compiles what a reader copies.

extract_examples.py OUTPUT_DIR FILE.md...   every ```cpp block that holds `int main` becomes STEM_1.cpp, STEM_2.cpp, ...
Prints the files, one a line. A file that did not change keeps its time, so that nothing is rebuilt for it.
"""
import pathlib
import re
import sys


def main():
    output = pathlib.Path(sys.argv[1])
    output.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:]:
        blocks = re.findall(r"^```cpp\n(.*?)^```", pathlib.Path(name).read_text(), re.S | re.M)
        for number, block in enumerate((b for b in blocks if "int main" in b), 1):
            target = output / f"{pathlib.Path(name).stem}_{number}.cpp"
            if not target.exists() or target.read_text() != block:
                target.write_text(block)
            print(target)


if __name__ == "__main__":
    main()
