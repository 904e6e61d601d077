"""docs/results/densenet.md changes with its measurements."""
from page_support import change, line_of, pages


def test_a_new_measurement_changes_the_page(results):
    def slower(content):
        next(row for row in content["rows"] if row["claim"] == "BC-100 k=12 step, shared")["ratio"] = 1.125

    change(results / "densenet_time.json", slower)
    assert pages("densenet", "--check", "--results", results)[0] == 1
    assert pages("densenet", "--results", results) == (0, "")
    assert pages("densenet", "--check", "--results", results) == (0, "")
    assert "| +12.5 % | +10.0 % |" in line_of(results / "densenet.md", "| BC-100 k=12 step, shared")


def test_the_depth_in_12_gb_lies_on_the_line_between_two_peaks(results):
    peaks = {"naive": [7000, 14000, 21000], "fused": [100, 200, 300], "shared": [12500, 13000, 14000]}
    rows = [{"layers": layers, "form": form, "kept_mb": 1, "peak_mb": peak}
            for i, layers in enumerate((40, 110, 250)) for form, values in
            {**peaks, "shared_gradient": [1000, 12000, 23000]}.items() for peak in [values[i]]]
    change(results / "densenet_depth.json", lambda content: content.update(rows=rows))
    assert pages("densenet", "--results", results) == (0, "")
    assert line_of(results / "densenet.md", "| layers | 160 |") == "| layers | 160 | 340 | about 500 | 90 | over 250 | under 40 | 110 |"


def test_a_time_is_shown_where_it_was_measured(results):
    rows = [{"layers": layers, "form": form, "kept_mb": 1200, "peak_mb": 2000.4} for layers in (40, 100)
            for form in ("shared_gradient", "fused")]
    rows[0]["seconds"], rows[1]["seconds"] = [1, 2, 3], [0.8, 0.9, 4]
    change(results / "densenet_depth.json", lambda content: content.update(rows=rows))
    assert pages("densenet", "--results", results) == (0, "")
    assert line_of(results / "densenet.md", "| 40 |") == "| 40 | 1,200; 2,000; 1.00 | 1,200; 2,000; 0.45 |"
    assert line_of(results / "densenet.md", "| 100 |") == "| 100 | 1,200; 2,000 | 1,200; 2,000 |"
