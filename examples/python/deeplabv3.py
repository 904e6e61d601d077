"""DeepLabV3 of torchvision on ResNet-50: a segmentation network with dilated convolutions and a dictionary of outputs."""
import first_look


def make():
    return first_look.package("torchvision.models.segmentation").deeplabv3_resnet50(weights_backbone=None)


given = first_look.options(__doc__)
first_look.run(make, given)
