#pragma once

#include "palimpsest/kernels/cuda/dense_block.h"
#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/dense_block_case.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <vector>

namespace palimpsest::testing {

/// The tensors of one layer, with its normalization in the form of the CUDA kernels.
template <class S, class Rounding = S>
struct CudaDense : DenseTensors<S, Rounding> {
  using T = accumulate_t<S>;
  DenseCase c;
  std::vector<double> var, constant, per_deviation;
  std::vector<T> weight, bias, dweight, dbias, running_mean, running_var;

  explicit CudaDense(const DenseCase& given)
      : DenseTensors<S, Rounding>(given),
        c(given),
        constant(static_cast<std::size_t>(c.c), 0.5),
        per_deviation(static_cast<std::size_t>(c.c), -0.25),
        dweight(static_cast<std::size_t>(c.c), static_cast<T>(std::numeric_limits<double>::quiet_NaN())),
        dbias(dweight),
        running_mean(static_cast<std::size_t>(c.c), T(2)),
        running_var(static_cast<std::size_t>(c.c), T(3)) {
    Random random(c.seed + 1);
    for (int64_t i = 0; i < this->w.size(); ++i) this->w[i] = static_cast<S>(i / c.c == i % c.c ? 1.0 : 0.0);
    for (int64_t i = 0; i < this->h.size(); ++i)
      this->h[i] = static_cast<S>(std::numeric_limits<double>::quiet_NaN());
    for (std::size_t i = 0; i < this->scale.size(); ++i) {
      weight.push_back(static_cast<T>(static_cast<float>(this->scale[i])));
      bias.push_back(static_cast<T>(static_cast<float>(this->shift[i])));
      var.push_back(random.uniform(0.25, 4));
      this->scale[i] = this->per_dy[i] = static_cast<double>(weight[i]) * inv_std(i);
      this->shift[i] = static_cast<double>(bias[i]);
    }
  }

  double inv_std(std::size_t i) const { return 1 / std::sqrt(var[i] + kEps); }
  kernels::cuda::DenseStatistics statistics() const {
    return {this->mean.data(), var.data(), weight.data(), bias.data(), kEps};
  }
  DenseProductProblem problem() const { return c.problem<S>(); }
  kernels::cuda::DenseNormalizeBackward all_gradients() {
    return {this->x.data(),  this->dh.data(),     true, this->gradient.data(), dweight.data(), dbias.data(),
            constant.data(), per_deviation.data()};
  }

  void forward(const kernels::RunningStatistics& running = {}) {
    kernels::cuda::dense_normalize(problem(), statistics(), running, this->x.data(), this->h.data(), nullptr);
  }
  void backward(const kernels::cuda::DenseNormalizeBackward& t) {
    const auto workspace = any_content(kernels::cuda::dense_workspace_bytes(problem()));
    kernels::cuda::dense_normalize_backward(problem(), statistics(), t, {nullptr, workspace.get()});
  }
};

}  // namespace palimpsest::testing
