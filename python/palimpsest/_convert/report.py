"""What convert() did."""
import dataclasses


@dataclasses.dataclass
class Layer:
    """A layer of the network and what became of it."""
    name: str
    kind: str
    converted: bool
    how: str  #: what it is now, or why it was left alone
    runs_again: bool = False  #: in backward, where its input needs no gradient


@dataclasses.dataclass
class Report:
    """Prints as a table."""
    layers: list[Layer]
    kept_bytes_before: int | None = None  #: saved for backward by one step with example_inputs; None without them
    kept_bytes_after: int | None = None
    notes: list[str] = dataclasses.field(default_factory=list)  #: lines that concern the network as a whole

    @property
    def converted(self) -> list[str]:
        """The names of the converted layers."""
        return [layer.name for layer in self.layers if layer.converted]

    @property
    def left(self) -> dict[str, str]:
        """Name to reason of the layers that were left alone."""
        return {layer.name: layer.how for layer in self.layers if not layer.converted}

    def __str__(self) -> str:
        rows = [("layer", "kind", "", "how, or why not")]
        rows += [(layer.name, layer.kind, "converted" if layer.converted else "left", layer.how) for layer in self.layers]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[3]]).rstrip() for row in rows]
        lines.append(f"{len(self.converted)} of {len(self.layers)} layers converted")
        if self.kept_bytes_before and self.kept_bytes_after is not None:
            ratio = self.kept_bytes_after / self.kept_bytes_before
            lines.append(f"saved for backward with example_inputs: {_size_in_words(self.kept_bytes_after)}, "
                         f"{_size_in_words(self.kept_bytes_before)} before ({ratio:.2f})")
        return "\n".join(lines + self.notes)


def _size_in_words(count):
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
