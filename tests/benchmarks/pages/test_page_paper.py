"""docs/results/paper.md changes with its measurements."""
from page_support import change, line_of, pages


def test_a_new_measurement_changes_the_page(results):
    def slower(content):
        row = next(row for row in content["rows"] if row["claim"] == "(512, 14) 3x3 grouped checkpoint")
        row["ratio"] = 1.125

    change(results / "block_time.json", slower)
    assert pages("paper", "--check", "--results", results)[0] == 1
    assert pages("paper", "--results", results) == (0, "")
    assert pages("paper", "--check", "--results", results) == (0, "")
    line = next(line for line in (results / "paper.md").read_text().splitlines()
                if line.startswith("| CONV3") and "3x3 grouped" in line)
    assert "| +1.6 % | +3.1 % |" in line and "| +12.5 % |" in line


def test_a_time_beyond_its_limit_fails_in_the_page(results):
    def beyond(content):
        content["rows"][0].update(ratio=1.25)
        content["rows"][0]["pass"] = False

    for name in ("block_time", "model_step"):
        change(results / f"{name}.json", beyond)
    assert pages("paper", "--results", results) == (0, "")
    lines = (results / "paper.md").read_text().splitlines()
    assert sum("+25.0 %: FAIL" in line for line in lines) == 2


def test_a_strategy_that_joins_the_measurement_joins_the_page(results):
    def add(content):
        content["rows"].append({**content["rows"][0], "claim": "(1024, 7) 1x1 inplace_1", "ratio": 0.5})

    change(results / "block_time.json", add)
    assert pages("paper", "--results", results) == (0, "")
    page = (results / "paper.md").read_text()
    assert "| `inplace_1` |" in page and "| -50.0 % |" in page


def test_a_network_that_joins_the_memory_joins_the_page(results):
    (results / "memory/another.json").write_text((results / "memory/deeplabv3_resnet18.json").read_text().replace(
        "deeplabv3_resnet18", "another_network"))
    assert pages("paper", "--results", results) == (0, "")
    assert "; `inplace_2` | 8 | 14 | +75.0 % |" in line_of(results / "paper.md", "| another_network")


def test_a_formula_that_is_off_fails_in_the_page(results):
    def off(content):
        row = next(row for row in content["rows"] if row["limit"] > 0)
        row["pass"], row["error"], row["largest_batch"] = False, 0.02, 2 * row["batch"]

    change(results / "equal_memory.json", off)
    assert pages("paper", "--results", results) == (0, "")
    line = next(line for line in (results / "paper.md").read_text().splitlines() if "| +2.00 % |" in line)
    assert ": +100.0 % [+75.0 %] |" in line and ": FAIL |" in line
