"""docs/results/claims.md names each claim that does not hold, and the machine of each file."""
import json

from page_support import change, line_of, pages

PAGE = "claims.md"


def only(results, *names):
    for path in results.rglob("*.json"):
        if str(path.relative_to(results)) not in names:
            path.unlink()


def test_a_claim_that_does_not_hold_is_named_and_counted(results):
    only(results, "kept_bytes.json", "layer_time.json")

    def hold(found):
        for row in found["rows"]:
            row["pass"] = True

    change(results / "kept_bytes.json", hold)
    change(results / "layer_time.json", hold)
    assert pages("claims", "--results", results) == (0, "")
    assert "Every claim holds." in (results / PAGE).read_text()

    def fail(found):
        found["rows"][0].update(ratio=0.875, limit=0.5, **{"pass": False})
        found.update(commit="0123456789", processor="A processor", threads=3, instruction_set="x86-64-v3")

    change(results / "layer_time.json", fail)
    assert pages("claims", "--results", results) == (0, "")
    text = (results / PAGE).read_text()
    assert "Every claim holds." not in text
    line = next(line for line in text.splitlines() if line.startswith("| `layer_time.json` |"))
    assert line.endswith("| 0.875 | 0.50 |")
    assert "| `layer_time.json` | A processor, 3 threads, x86-64-v3 | 0123456789 |" in text
    assert line_of(results / PAGE, "| `kept_bytes.json`").endswith("| 0 |")


def test_rows_that_claim_nothing_or_were_not_measured_are_left_out(results):
    def nothing(found):
        found["rows"] = found["rows"][:3]
        found["rows"][0].update(limit=None, **{"pass": None})
        found["rows"][1].update(ratio=None, not_measured="no compiler", **{"pass": None})
        found["rows"][2]["pass"] = True

    change(results / "kept_bytes.json", nothing)
    assert pages("claims", "--results", results) == (0, "")
    assert line_of(results / PAGE, "| `kept_bytes.json`").endswith("| 1 | 0 |")


def test_a_claim_of_a_machine_is_named_with_its_setting(results):
    name = "machines/intel_xeon_avx512.json"
    only(results, "kept_bytes.json", name)
    path = results / name
    content = json.loads(path.read_text())
    for run in content["runs"]:
        for row in run["rows"]:
            row["pass"] = True
    content["runs"][0].update(threads=3, instruction_set="x86-64-v3", commit="0123456789")
    content["runs"][0]["rows"][0].update(ratio=0.875, limit=0.5, **{"pass": False})
    path.write_text(json.dumps(content))
    assert pages("claims", "--results", results) == (0, "")
    assert line_of(results / PAGE, f"| `{name}` (3 threads, x86-64-v3) |").endswith("| 0.875 | 0.50 |")
    line = line_of(results / PAGE, f"| `{name}` | ")
    assert content["machine"]["processor"] in line and "0123456789, " in line and line.endswith(" | 1 |")


def test_files_without_claims_have_their_machine_and_commit_too(results):
    only(results, "kept_bytes.json", "mixed_precision/ssd.json")
    (results / "list.json").write_text('[{"parser": "png"}]')
    (results / "fuzz.json").write_text('{"processor": "Another", "commit": "abc", "parsers": [{"parser": "png"}]}')

    def commits(found):
        for i, run in enumerate(found["runs"]):
            run.update(commit=f"commit{i % 2}", processor="A processor")

    change(results / "mixed_precision/ssd.json", commits)
    assert pages("claims", "--results", results) == (0, "")
    assert line_of(results / PAGE, "| `mixed_precision/ssd.json`") \
        == "| `mixed_precision/ssd.json` | A processor | commit0, commit1 |  |  |"
    assert line_of(results / PAGE, "| `fuzz.json`") == "| `fuzz.json` | Another | abc |  |  |"
    assert line_of(results / PAGE, "| `list.json`") == "| `list.json` | not recorded | not recorded |  |  |"


def test_a_folder_without_claims_is_one_line(results):
    only(results)
    status, said = pages("claims", "--results", results)
    assert status == 2 and said.count("\n") == 1 and "has no JSON file with claims" in said
