#pragma once

#include "palimpsest/base/dtype.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

/// The calls of CPU kernels whose instructions are counted.
namespace palimpsest::instructions {

/// One call of one kernel.
struct Case {
  std::string name;    ///< e.g. "abn_forward f32 NCHW"
  int64_t values = 0;  ///< by which its instructions are divided: those of the largest tensor
  std::function<std::function<void()>()> prepare;  ///< makes the tensors, and returns the call
};

/// Each returns the cases of some kernels.
std::vector<Case> abn_cases();
std::vector<Case> max_pool_cases();
std::vector<Case> upsampled_loss_cases();
std::vector<Case> conv2d_cases();
std::vector<Case> dense_block_cases();
std::vector<Case> gates_cases();

/// The types of the tensors, by the names that cases give them.
inline const std::vector<std::pair<DType, std::string>> kDTypes{
    {DType::f32, "f32"}, {DType::bf16, "bf16"}, {DType::f16, "f16"}, {DType::f64, "f64"}};

}  // namespace palimpsest::instructions
