#include "palimpsest/ops/common/names.h"
#include "palimpsest/ops/dense_block.h"

#include <torch/library.h>

/// Registers torch.ops.palimpsest.dense_block: ops::dense_block with one tensor per layer in each list.
/// kernel1 and kernel2 are the weights of conv1 and conv2. The operator is composite, as abn is
/// (abn/schema.cpp), but runs in eager mode only: a block reads its tensors' memory, and traced tensors have
/// none.
namespace palimpsest::ops::dense_block_detail {
namespace {

at::Tensor dense_block_of_lists(const at::Tensor& x, at::TensorList weight1, at::TensorList bias1,
                                at::TensorList running_mean1, at::TensorList running_var1,
                                at::TensorList kernel1, at::TensorList weight2, at::TensorList bias2,
                                at::TensorList running_mean2, at::TensorList running_var2,
                                at::TensorList kernel2, bool training, double momentum, double eps,
                                std::string_view activation, double activation_param,
                                std::optional<std::string_view> saved, bool pre_activation, double dropout,
                                std::optional<std::string_view> keep, std::string_view group) {
  for (const auto& list :
       {weight1, bias1, running_mean1, running_var1, kernel1, weight2, bias2, running_mean2, running_var2})
    TORCH_CHECK(list.size() == kernel2.size(),
                "[dense_block] every list needs one tensor per layer: kernel2 has ", kernel2.size(),
                ", another has ", list.size());
  const AbnOptions norm{training,
                        momentum,
                        eps,
                        activation_from_name(activation),
                        activation_param,
                        saved_from_arguments("dense_block", saved, keep),
                        /*relu_residual=*/false,
                        std::string(group)};
  std::vector<DenseLayer> layers;
  for (std::size_t i = 0; i < kernel2.size(); ++i) {
    const at::Tensor& k = kernel2[i];
    TORCH_CHECK(k.dim() == 4, "[dense_block] kernel2 must be (k, bottleneck, kh, kw), got shape ", k.sizes());
    layers.push_back({{weight1[i], bias1[i], running_mean1[i], running_var1[i]},
                      norm,
                      kernel1[i],
                      {weight2[i], bias2[i], running_mean2[i], running_var2[i]},
                      norm,
                      k,
                      {{1, 1}, {k.size(2) / 2, k.size(3) / 2}, {1, 1}, 1}});
  }
  return dense_block(x, layers, {pre_activation, dropout});
}

TORCH_LIBRARY_FRAGMENT(palimpsest, m) {
  m.def(
      "dense_block(Tensor x, Tensor[] weight1, Tensor[] bias1, Tensor(a!)[] running_mean1, "
      "Tensor(b!)[] running_var1, Tensor[] kernel1, Tensor[] weight2, Tensor[] bias2, "
      "Tensor(c!)[] running_mean2, Tensor(d!)[] running_var2, Tensor[] kernel2, bool training=True, "
      "float momentum=0.1, float eps=1e-5, str activation=\"leaky_relu\", float activation_param=0.01, "
      "str? saved=None, bool pre_activation=True, float dropout=0.0, str? keep=None, str group=\"\") "
      "-> Tensor",
      &dense_block_of_lists);
}

}  // namespace
}  // namespace palimpsest::ops::dense_block_detail
