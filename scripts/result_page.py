"""What the scripts share that write a page of docs/results from the measurements beside it.

A script NAME_figures.py [--check] [RESULTS_DIR] gives `main` its function from a folder to the page's text. Exit status:
0 done, or the page is as the files say; 1 with --check, it is not; 2 a wrong option, a file is missing or is not what it
should be.
"""
import json
import pathlib
import sys

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "docs/results"


class Unreadable(Exception):
    """One line: which file, and what is wrong with it."""


NOT_MEASURED = "not measured"


def read(path, writer="`make bench`"):
    """What a JSON file holds; writer: the command that makes it."""
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise Unreadable(f"cannot read {path}: {error.strerror}; {writer} writes it") from None
    except ValueError as error:
        raise Unreadable(f"{path} is no JSON file: {error}") from None


def table(header, rows, numbers=0):
    """The last `numbers` columns are set to the right."""
    rule = ["---"] * (len(header) - numbers) + ["---:"] * numbers
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *rows])


def percent(value):
    return f"{value:+.1f} %"


def between_marks(path, name, content):
    """The text of a page with `content` between its lines <!-- NAME begin --> and <!-- NAME end -->."""
    text, begin, end = path.read_text(), f"<!-- {name} begin -->\n", f"<!-- {name} end -->\n"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
        raise Unreadable(f"{path} needs one line {begin.strip()} and, behind it, one line {end.strip()}")
    before, rest = text.split(begin)
    return before + begin + content + end + rest.split(end)[1]


def write(script, wanted, check):
    """Writes {path: text}, or with check names on stderr what differs. Whether all is as wanted now."""
    name = pathlib.Path(script).name
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if check:
            print(f"{name}: {path} is not what the files say that it is made from: run scripts/{name}", file=sys.stderr)
        else:
            path.write_text(wanted[path])
    return not (check and stale)


def exit_with(script, main):
    """Runs main(arguments) of a script and exits: with its status, or with 2 and one line for what it cannot use."""
    try:
        sys.exit(main(sys.argv[1:]))
    except (ValueError, KeyError, TypeError, OSError, Unreadable) as error:
        print(f"{pathlib.Path(script).stem}: {error}", file=sys.stderr)
        sys.exit(2)


def main(script, page_name, page, arguments):
    """Writes RESULTS_DIR/page_name, or with --check compares; the exit status. script: its file, as called."""
    name = pathlib.Path(script).name
    check = arguments[:1] == ["--check"]
    rest = arguments[check:]
    if len(rest) > 1 or any(argument.startswith("-") for argument in rest):
        print(f"{name}: usage: {name} [--check] [RESULTS_DIR]", file=sys.stderr)
        return 2
    folder = pathlib.Path(rest[0]) if rest else RESULTS
    target = folder / page_name
    try:
        return 0 if write(script, {target: page(folder)}, check) else 1
    except (KeyError, TypeError, IndexError) as error:
        print(f"{name}: a file of {folder} is of another form: {type(error).__name__} {error}", file=sys.stderr)
        return 2
    except (Unreadable, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
