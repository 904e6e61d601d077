#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace palimpsest::train {

/// Returns how often each of the ids 0 to bins - 1 occurs in `ids`, i64 of any shape: (bins) of i64. An id
/// out of range is undefined behaviour. On a GPU the host waits for nothing, unlike at::bincount, which reads
/// the largest id.
at::Tensor count_ids(const at::Tensor& ids, int64_t bins);

/// What count_ids does on a GPU, on any device.
at::Tensor count_ids_by_adding(const at::Tensor& ids, int64_t bins);

/// Returns which targets are neither a class in [0, classes) nor the ignore id, bool of the shape of
/// `targets`.
at::Tensor wrong_targets(const at::Tensor& targets, int64_t classes, int64_t ignore_id);

/// Returns which targets count, bool of the shape of `targets`: classes in [0, classes) that are not the ignore id.
at::Tensor counted_targets(const at::Tensor& targets, int64_t classes, int64_t ignore_id);

/// Returns the first label of `targets` whose place in `wrong` is true, an f64 scalar; NaN: none. Waits for
/// nothing.
at::Tensor first_wrong_label(const at::Tensor& targets, const at::Tensor& wrong);

}  // namespace palimpsest::train
