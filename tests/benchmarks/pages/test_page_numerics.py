"""docs/numerics.md changes with its measurements."""
from page_support import change, pages


def test_a_changed_number_is_noticed_and_written(results):
    change(results / "numerics.json", lambda content: content["rows"][0].update(dx=0.123))
    assert pages("numerics", "--check", "--results", results)[0] == 1
    assert pages("numerics", "--results", results) == (0, "")
    assert "1.2e-1" in (results.parent / "numerics.md").read_text()
    assert pages("numerics", "--check", "--results", results) == (0, "")
