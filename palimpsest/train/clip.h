#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace palimpsest::train {

/// Bounds the norm of the gradient of all parameters of `optimizer` together:
///   norm = sqrt(sum of squares of all gradients), computed in f64
///   g   <- g * max_norm / norm for every gradient g, if norm > max_norm
/// Returns the norm before the change, an f64 scalar on the device of the gradients, without a wait: there
/// the gradients are always multiplied, by 1 if the norm is small. A norm that is not finite changes nothing.
/// With loss scaling call it after GradScaler::unscale_ (as `change_gradients` of Step::update does); with
/// several ranks after the gradients are averaged.
/// Source: Pascanu, Mikolov, Bengio, "On the difficulty of training Recurrent Neural Networks", ICML 2013.
at::Tensor clip_gradients_on_device(torch::optim::Optimizer& optimizer, double max_norm);
/// Does the same and returns the norm as a number, for which the host waits.
double clip_gradients(torch::optim::Optimizer& optimizer, double max_norm);

/// Multiplies every gradient of the parameters of `optimizer` by `factor`, a scalar on their device.
void scale_gradients(torch::optim::Optimizer& optimizer, const at::Tensor& factor);

}  // namespace palimpsest::train
