#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/base/shape.h"

#include <cstdint>
#include <functional>
#include <memory>
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

/// Returns the case of call(tensors, problem), for Tensors that are made from the problem. `before`: a call of the
/// same form that is not counted, for what the counted one reads.
template <class Tensors, class Problem, class Call, class Before>
Case case_of(const std::string& name, int64_t values, const Problem& problem, Call call, Before before) {
  return {name, values, [=] {
            const auto tensors = std::make_shared<Tensors>(problem);
            before(*tensors, problem);
            return [=] { call(*tensors, problem); };
          }};
}
template <class Tensors, class Problem, class Call>
Case case_of(const std::string& name, int64_t values, const Problem& problem, Call call) {
  return case_of<Tensors>(name, values, problem, call, [](Tensors&, const Problem&) {});
}

/// Returns the name that cases give the layout.
inline std::string name_of(Layout layout) {
  return layout == Layout::kNCHW ? "NCHW" : "channels-last";
}

/// Each returns the cases of some kernels.
std::vector<Case> abn_cases();
std::vector<Case> max_pool_cases();
std::vector<Case> upsampled_loss_cases();
std::vector<Case> conv2d_cases();
std::vector<Case> dense_block_cases();
std::vector<Case> gates_cases();
std::vector<Case> exponent_histogram_cases();

/// The types of the tensors, by the names that cases give them.
inline const std::vector<std::pair<DType, std::string>> kDTypes{
    {DType::f32, "f32"}, {DType::bf16, "bf16"}, {DType::f16, "f16"}, {DType::f64, "f64"}};

}  // namespace palimpsest::instructions
