"""What the caller of convert() asked for."""
import dataclasses

from palimpsest import functional


def strategy_names() -> tuple[str, ...]:
    """The strategies of convert(): all but that of torch's own layers."""
    return ("auto", *(name for name in functional.strategy_names() if name != "standard"))


@dataclasses.dataclass
class Options:
    """accepts(module, name relative to the region): False leaves a layer alone."""
    strategy: str = "auto"
    accepts: object = lambda module, name: True
    activations: dict = dataclasses.field(default_factory=dict)  #: custom_activations.checked()

    @property
    def is_auto(self):
        """Whether a layer saves what is best for it and its readers: "store_y" is what "auto" means for most activations."""
        return self.strategy in ("auto", "store_y")
