"""docs/results/machines.md has one row per machine, instruction set and number of threads."""
import json

from page_support import change, line_of, pages

FILE, PAGE = "machines/intel_xeon_avx512.json", "machines.md"


def machine(results, name, **rows):
    """Writes a machine with one run per benchmark."""
    kept = {"processor": "Some(R) Chip(TM) 9", "family": "1", "model": "2", "stepping": "3", "processors": 4}
    runs = [{"benchmark": benchmark, "instruction_set": "x86-64-v3", "libtorch_instruction_set": "AVX2", "threads": 4,
             "libtorch": "2.11.0", "repeats": 3, "commit": "abc",
             "rows": [{"claim": claim, "opponent_name": opponent, "ratio": ratio} for claim, opponent, ratio in of_run]}
            for benchmark, of_run in rows.items()]
    (results / "machines" / f"{name}.json").write_text(json.dumps({"machine": kept, "runs": runs}))


def cells(results, start):
    header = line_of(results / PAGE, "| processor")
    names, values = ([cell.strip() for cell in line.strip("|").split("|")] for line in (header, line_of(results / PAGE, start)))
    return dict(zip(names, values))


def remove_machines(results):
    for file in (results / FILE).parent.glob("*.json"):
        file.unlink()


def test_machines_stand_side_by_side_and_say_what_was_not_measured(results):
    remove_machines(results)
    machine(results, "one", layer_time=[("[2, 3, 4, 5] NCHW", "batch_norm + leaky_relu", 0.234),
                                        ("[2, 3, 7, 7] NCHW", "batch_norm + leaky_relu_", 0.319),
                                        ("[2, 3, 4, 5] channels-last bf16", "batch_norm + leaky_relu", 0.5)])
    machine(results, "two", model_step=[("resnet50 step, batch 16", "standard", 0.9)],
            max_pool_time=[("3x3 Float NCHW", "at::max_pool2d", 0.25), ("2x2 Float channels-last", "at::max_pool2d", 0.2501)])
    assert pages("machines", "--results", results) == (0, "")
    assert cells(results, "| Some Chip 9 (`one`)") == {
        "processor": "Some Chip 9 (`one`)", "instruction set": "x86-64-v3", "threads": "4", "layer f32 NCHW": "0.23-0.32",
        "layer bf16 channels-last": "0.50", "max pooling f32": "not measured", "resnet50 step": "not measured"}
    two = cells(results, "| Some Chip 9 (`two`)")
    assert (two["layer f32 NCHW"], two["max pooling f32"], two["resnet50 step"]) == ("not measured", "0.25", "0.90")
    assert ("- `two`: Some(R) Chip(TM) 9 (family 1, model 2, stepping 3), 4 processors, libtorch 2.11.0.\n"
            "  - `bench_model_step`: commit abc, --repeats 3\n"
            "  - `bench_max_pool_time`: commit abc, --repeats 3\n") in (results / PAGE).read_text()


def test_our_f32_memory_and_frozen_statistics_have_columns_of_their_own_and_other_opponents_have_none(results):
    remove_machines(results)
    machine(results, "one", layer_time=[("[2, 3, 4, 5] NCHW bf16", "batch_norm + leaky_relu", 0.2),
                                        ("[2, 3, 4, 5] NCHW bf16", "ours in f32", 0.81),
                                        ("[2, 3, 4, 5] NCHW bf16", "5 passes over memory", 1.04),
                                        ("[2, 3, 4, 5] NCHW", "5 passes over memory", 1.16),
                                        ("[2, 3, 4, 5] channels-last", "8 passes over memory", 0.92),
                                        ("[2, 3, 4, 5] NCHW bf16, frozen statistics", "batch_norm + leaky_relu", 0.61),
                                        ("[2, 3, 4, 5] NCHW, frozen statistics", "batch_norm + leaky_relu_", 0.72),
                                        ("[2, 3, 4, 5] NCHW bf16", "another", 9.9)])
    assert pages("machines", "--results", results) == (0, "")
    found = cells(results, "| Some")
    assert found["layer bf16 NCHW"] == "0.20" and found["layer bf16 NCHW over f32"] == "0.81"
    assert found["layer NCHW over memory"] == "1.04-1.16" and found["layer channels-last over memory"] == "0.92"
    assert found["layer, frozen statistics"] == "0.61-0.72" and "layer f32 NCHW" not in found
    assert "9.9" not in found.values()


def test_pieces_of_different_commits_are_told_apart(results):
    def older(content):
        content["runs"][0].update(commit="older")

    change(results / FILE, older)
    assert pages("machines", "--results", results) == (0, "")
    run = json.loads((results / FILE).read_text())["runs"][0]
    piece = f"({run['instruction_set']} x{run['threads']})"
    assert f"`bench_{run['benchmark']}`: commit older, --repeats {run['repeats']} {piece}" in (results / PAGE).read_text()


def test_a_changed_ratio_is_noticed_and_written(results):
    change(results / FILE, lambda content: content["runs"][0]["rows"][0].update(ratio=7.77))
    assert pages("machines", "--check", "--results", results)[0] == 1
    assert pages("machines", "--results", results) == (0, "")
    assert "7.77" in (results / PAGE).read_text()


def test_without_a_measurement_the_page_says_so(results):
    remove_machines(results)
    assert pages("machines", "--results", results) == (0, "")
    assert "No machine: not measured." in (results / PAGE).read_text()


def test_an_unknown_claim_is_one_line(results):
    machine(results, "one", layer_time=[("another claim", "batch_norm + leaky_relu", 0.2)])
    status, said = pages("machines", "--results", results)
    assert status == 2 and said.startswith("pages: machines: a measurement has another form: ") and said.count("\n") == 1
