"""docs/results/mixed_precision.md: the families of the mixed precision paper in f32 and in 16 bits.

Writes the two tables between the marks of the page and mixed_precision/loss.svg, from mixed_precision/*.json.
"""
import classification
import programs
from result_page import between_marks, text_of

TITLE = "docs/results/mixed_precision.md: the families of the mixed precision paper in f32 and in 16 bits"


def write(results):
    page = results / "mixed_precision.md"
    table, chart = programs.content(results)
    text = between_marks(page, text_of(page), "classification", classification.content(results))
    return {page: between_marks(page, text, "programs", table), results / "mixed_precision/loss.svg": chart}
