"""Weights of other programs."""


def load_original(state_dict, eps=1e-5):
    """The state dict of a network that the package inplace_abn trained, for our layers, which use the weight as it is.

    The original computes |weight| + eps. Returns a new dict in which that is stored for each layer that has a running_mean.
    `eps`: that of the layers. A state dict without weights below 0 that torch's layers trained needs no conversion."""
    converted = dict(state_dict)
    for key in state_dict:
        weight = key.removesuffix("running_mean") + "weight"
        if key.endswith("running_mean") and state_dict.get(weight) is not None:
            converted[weight] = state_dict[weight].abs() + eps
    return converted
