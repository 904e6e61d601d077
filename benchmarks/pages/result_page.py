"""The parts that the writers of the pages share: reading measurements, tables, the text between two marks of a page."""
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/results"
NOT_MEASURED = "not measured"
NETWORK_NAMES = {"resnet50": "ResNet-50", "resnext50_32x4d": "ResNeXt-50", "efficientnet_b0": "EfficientNet-B0",
                 "densenet121": "DenseNet-121"}

opened = []  # the JSON files that `read` read; pages.write takes them for the section that says where a page was measured


class Unreadable(Exception):
    """One line, which names the file and its fault."""


def read(path, writer="make bench"):
    """The content of a JSON file. writer: the command that makes the file, for the error message."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise Unreadable(f"cannot read {path}: {error.strerror}; `{writer}` writes it") from None
    except ValueError as error:
        raise Unreadable(f"{path} is no JSON file: {error}") from None
    opened.append(path)
    return content


def table(header, rows, numbers=0):
    """A Markdown table; its last `numbers` columns are right-aligned."""
    rule = ["---"] * (len(header) - numbers) + ["---:"] * numbers
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *rows])


def runs_of(measured):
    """The timed runs of each side of a benchmark's rows."""
    return measured["rows"][0]["measured"]["runs"]


def mark(holds):
    """What a cell of a claim ends in."""
    return "" if holds else ": FAIL"


def percent(value):
    return f"{value:+.1f} %"


def between_marks(path, text, name, content):
    """Returns `text`, the text of the page at `path`, with `content` between its lines <!-- NAME begin --> and
    <!-- NAME end -->."""
    begin, end = f"<!-- {name} begin -->\n", f"<!-- {name} end -->\n"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
        raise Unreadable(f"{path} needs one line {begin.strip()} and, after it, one line {end.strip()}")
    before, rest = text.split(begin)
    return before + begin + content + end + rest.split(end)[1]


def text_of(path):
    try:
        return path.read_text()
    except OSError as error:
        raise Unreadable(f"cannot read {path}: {error.strerror}") from None
