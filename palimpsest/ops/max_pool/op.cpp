#include "palimpsest/ops/max_pool.h"

#include "palimpsest/kernels/max_pool.h"
#include "palimpsest/ops/common/gradients.h"
#include "palimpsest/ops/max_pool/functional.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <limits>
#include <string>

namespace palimpsest::ops::max_pool_detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Numbers = std::array<int64_t, 2>;

Numbers two_numbers(const char* name, at::IntArrayRef given, int64_t least,
                    int64_t most = kernels::kMaxPoolStep) {
  TORCH_CHECK(given.size() == 1 || given.size() == 2, "[max_pool2d] ", name,
              " must be one number or two (height, width), got ", given);
  const Numbers numbers{given[0], given.back()};
  TORCH_CHECK(numbers[0] >= least && numbers[1] >= least, "[max_pool2d] ", name, " must be at least ", least,
              ", got ", given);
  TORCH_CHECK(numbers[0] <= most && numbers[1] <= most, "[max_pool2d] ", name, " must be at most ", most,
              ", got ", given);
  return numbers;
}

struct Window {
  Numbers kernel_size, stride, padding, dilation;

  WindowArguments arguments() const { return {kernel_size, stride, padding, dilation}; }
};

Window check_window(at::IntArrayRef kernel_size, at::IntArrayRef stride, at::IntArrayRef padding,
                    at::IntArrayRef dilation) {
  const Numbers size = two_numbers("kernel_size", kernel_size, 1, std::numeric_limits<int64_t>::max());
  constexpr int64_t kMost = kernels::kMaxPoolPositions;
  TORCH_CHECK(size[0] <= kMost && size[1] <= kMost && size[0] * size[1] <= kMost,
              "[max_pool2d] a window must have at most ", kMost,
              " positions, because one byte holds the place of its maximum, got kernel_size ", kernel_size,
              "; take at::max_pool2d (torch.nn.functional.max_pool2d) for larger ones");
  const Window w{size, two_numbers("stride", stride.empty() ? kernel_size : stride, 1),
                 two_numbers("padding", padding, 0), two_numbers("dilation", dilation, 1)};
  for (const int d : {0, 1})
    TORCH_CHECK(w.padding[d] <= w.kernel_size[d] / 2,
                "[max_pool2d] padding must be at most half the kernel size, got padding ", padding,
                " and kernel_size ", kernel_size);
  return w;
}

void check_x(const at::Tensor& x, const Window& w, bool ceil_mode) {
  TORCH_CHECK(x.defined(), "[max_pool2d] x must be a tensor, got none");
  TORCH_CHECK(x.layout() == at::kStrided, "[max_pool2d] x must be a dense (strided) tensor, got layout ",
              x.layout());
  TORCH_CHECK(x.dim() == 3 || x.dim() == 4, "[max_pool2d] x must be (N, C, H, W) or (C, H, W), got shape ",
              x.sym_sizes());
  const auto type = x.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16,
              "[max_pool2d] x must be float32, float64, float16 or bfloat16, got ",
              c10::getDtypeNames(type).first);
  TORCH_CHECK(x.device().is_cpu() || x.device().is_cuda() || x.device().is_meta(),
              "[max_pool2d] x must be on the CPU or on a CUDA device, got ", x.device(),
              "; move it with x.to(\"cpu\")");
  for (const int64_t d : {x.dim() - 3, x.dim() - 2, x.dim() - 1})
    TORCH_CHECK(x.sym_size(d) != 0,
                "[max_pool2d] x needs at least one channel and one pixel (only N may be 0), got shape ",
                x.sym_sizes());
  for (const int d : {0, 1}) {
    const c10::SymInt out = kernels::pooled_size<c10::SymInt>(
        x.sym_size(x.dim() - 2 + d), w.kernel_size[d], w.stride[d], w.padding[d], w.dilation[d], ceil_mode);
    TORCH_CHECK(out >= 1, "[max_pool2d] the window must fit into the padded image, got x of shape ",
                x.sym_sizes(), " with kernel_size ", at::IntArrayRef(w.kernel_size), ", dilation ",
                at::IntArrayRef(w.dilation), ", padding ", at::IntArrayRef(w.padding));
  }
}

class MaxPoolFunction : public torch::autograd::Function<MaxPoolFunction> {
 public:
  static constexpr bool is_traceable = true;

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::IntArrayRef kernel_size,
                            at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                            bool ceil_mode) {
    auto [z, argmax] = max_pool_detail::forward(x, {kernel_size, stride, padding, dilation}, ceil_mode, true);
    ctx->save_for_backward({argmax});
    ctx->saved_data["kernel_size"] = kernel_size;
    ctx->saved_data["stride"] = stride;
    ctx->saved_data["padding"] = padding;
    ctx->saved_data["dilation"] = dilation;
    ctx->saved_data["height"] = x.sym_size(2);
    ctx->saved_data["width"] = x.sym_size(3);
    ctx->saved_data["channels_last"] = x.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
    return z;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    refuse_double_backward("max_pool2d", "at::max_pool2d (torch.nn.functional.max_pool2d)");
    at::Tensor dx;
    if (gradients[0].defined()) {
      const auto numbers = [&](const char* name) { return ctx->saved_data[name].toIntVector(); };
      const auto kernel_size = numbers("kernel_size"), stride = numbers("stride"),
                 padding = numbers("padding"), dilation = numbers("dilation");
      dx = max_pool_detail::backward(
          gradients[0], ctx->get_saved_variables()[0], {kernel_size, stride, padding, dilation},
          ctx->saved_data["height"].toSymInt(), ctx->saved_data["width"].toSymInt(),
          ctx->saved_data["channels_last"].toBool());
    }
    return {dx, {}, {}, {}, {}, {}};
  }
};

at::Tensor pool_images(const at::Tensor& x, const WindowArguments& w, bool ceil_mode) {
  if (c10::GradMode::is_enabled() && x.requires_grad())
    return MaxPoolFunction::apply(x, w.kernel_size, w.stride, w.padding, w.dilation, ceil_mode);
  return std::get<0>(max_pool_detail::forward(x, w, ceil_mode, /*for_backward=*/false));
}

}  // namespace

}  // namespace palimpsest::ops::max_pool_detail

namespace palimpsest::ops {

at::Tensor max_pool2d(const at::Tensor& x, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                      at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  using namespace max_pool_detail;
  const Window window = check_window(kernel_size, stride, padding, dilation);
  check_x(x, window, ceil_mode);
  if (x.dim() == 4) return pool_images(x, window.arguments(), ceil_mode);
  // libtorch's result for one image (C, H, W) is always contiguous.
  return pool_images(x.contiguous().unsqueeze(0), window.arguments(), ceil_mode).squeeze(0);
}

}  // namespace palimpsest::ops
