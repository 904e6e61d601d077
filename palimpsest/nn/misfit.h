#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace palimpsest::nn {

/// How the tensors of a file differ from those that a model (or its optimizer) has by the same names;
/// gathered to be told in one line.
struct Misfit {
  std::vector<std::string> missing, unexpected;
  std::vector<std::string> differing;  ///< "fc.weight is (10, 512) in the file, (1000, 512) in the model"

  bool empty() const { return missing.empty() && unexpected.empty() && differing.empty(); }
  /// Whether the shape, and if `same_type` the type, is as the model has it; noted in `differing` if not.
  bool fits(const std::string& name, const at::Tensor& file, const at::Tensor& model, bool same_type);
  /// "2 missing keys (a, b); 5 unexpected keys (c, d, e, ...); 1 of another shape or type (...)": the first
  /// three of each.
  std::string text() const;
};

}  // namespace palimpsest::nn
