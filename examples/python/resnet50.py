"""ResNet-50 of torchvision: exact ReLU, residual sums and a max pooling. Each normalization saves the value before its ReLU."""
import first_look

given = first_look.options(__doc__)
first_look.run(first_look.package("torchvision.models").resnet50, given)
