"""A U-Net of segmentation_models_pytorch on ResNet-18: skip connections that live until the decoder concatenates them."""
import first_look


def make():
    return first_look.package("segmentation_models_pytorch").Unet("resnet18", encoder_weights=None)


given = first_look.options(__doc__)
first_look.run(make, given)
