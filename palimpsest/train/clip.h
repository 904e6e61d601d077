#pragma once

#include <torch/optim/optimizer.h>

namespace palimpsest::train {

/// Bounds the norm of the gradient of all parameters of `optimizer` together:
///   norm = sqrt(sum of squares of all gradients), computed in f64
///   g   <- g * max_norm / norm for every gradient g, if norm > max_norm
/// Returns the norm before the change. A norm that is not finite changes nothing. With loss scaling call it
/// after GradScaler::unscale_ (as `change_gradients` of Step::update does); with several ranks after the
/// gradients are averaged. The host waits for the device.
/// Source: Pascanu, Mikolov, Bengio, "On the difficulty of training Recurrent Neural Networks", ICML 2013.
double clip_gradients(torch::optim::Optimizer& optimizer, double max_norm);

/// Multiplies every gradient of the parameters of `optimizer` by `factor`.
void scale_gradients(torch::optim::Optimizer& optimizer, double factor);

}  // namespace palimpsest::train
