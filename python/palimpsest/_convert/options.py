"""What the caller of convert() asked for."""
import dataclasses

from palimpsest import functional


def strategy_names() -> tuple[str, ...]:
    """The strategies of convert(): all but that of torch's own layers."""
    return ("auto", *(name for name in functional.strategy_names() if name != "standard"))


THE_REST = "*"         #: what a report calls activations, dropouts and the like of a part without a converted layer
BESIDE_LAYERS = "**"   #: these in all parts: the proof leaves them alone by this name


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

    @property
    def takes_rest(self):
        """Whether activations, dropouts and the like may save less, too."""
        return self.is_auto and self.accepts(None, BESIDE_LAYERS)
