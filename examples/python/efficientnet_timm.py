"""EfficientNet-B0 of timm: SiLU, depthwise convolutions, squeeze and excitation, in timm's own classes of layers."""
import first_look


def make():
    return first_look.package("timm").create_model("efficientnet_b0")


given = first_look.options(__doc__)
first_look.run(make, given)
