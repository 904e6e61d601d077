#include "palimpsest/kernels/cuda/abn.h"
#include "palimpsest/kernels/cuda/dense_block.h"
#include "palimpsest/ops/common/cuda_call.h"
#include "palimpsest/ops/common/dtype.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/common/running_statistics.h"
#include "palimpsest/ops/convolution/functional.h"
#include "palimpsest/ops/dense_block/device.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace palimpsest::ops::dense_block_detail {

namespace cuda = kernels::cuda;

namespace {

kernels::DenseProductProblem shape_of_read(const Read& r) {
  const Shape3 shape = shape3(r.buffer.values);
  return {shape.n,
          shape.s,
          r.channels,
          shape.c,
          0,
          r.buffer.layout,
          dtype_of("dense_block", r.buffer.values),
          r.layer.options1.activation,
          r.layer.options1.activation_param};
}

/// The normalization's vectors in the types that the kernels read. No conversion waits for the device.
class Vectors {
 public:
  explicit Vectors(const Read& r)
      : weight_(parameter(r, r.layer.norm1.weight)),
        bias_(parameter(r, r.layer.norm1.bias)),
        mean_(r.layer.options1.training ? r.buffer.mean : f64(*r.layer.norm1.running_mean)),
        var_(r.layer.options1.training ? r.buffer.var : f64(*r.layer.norm1.running_var)),
        eps_(r.layer.options1.eps) {}

  cuda::DenseStatistics statistics() const {
    return {mean_.const_data_ptr<double>(), var_.const_data_ptr<double>(), data_or_null(weight_),
            data_or_null(bias_), eps_};
  }

 private:
  static at::Tensor parameter(const Read& r, const std::optional<at::Tensor>& t) {
    return t ? t->to(accumulate_type(r.buffer.values.scalar_type())).contiguous() : at::Tensor();
  }
  static at::Tensor f64(const at::Tensor& t) { return t.to(at::kDouble).contiguous(); }
  static const void* data_or_null(const at::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }

  at::Tensor weight_, bias_, mean_, var_;
  double eps_;
};

/// Returns norm1's running statistics if the kernels can move them.
kernels::RunningStatistics running_in_kernel(const Read& r) {
  const auto fits = [&](const std::optional<at::Tensor>& t) {
    return t && t->is_contiguous() && t->scalar_type() == accumulate_type(r.buffer.values.scalar_type());
  };
  const NormalizationTensors& norm = r.layer.norm1;
  if (!fits(norm.running_mean) || !fits(norm.running_var)) return {};
  return {norm.running_mean->mutable_data_ptr(), norm.running_var->mutable_data_ptr(),
          r.layer.options1.momentum};
}

at::Tensor features_of(const Read& r) {
  return r.buffer.values.narrow(1, 0, r.channels);
}

/// Returns the input of conv1.
at::Tensor normalized(const Read& r, bool moves_running) {
  if (!r.normalizes) return contiguous_in(r.buffer.layout, features_of(r));
  at::Tensor z = empty_channels(r.buffer, r.channels);
  const kernels::RunningStatistics running =
      moves_running ? running_in_kernel(r) : kernels::RunningStatistics{};
  const Vectors vectors(r);
  cuda::dense_normalize(shape_of_read(r), vectors.statistics(), running, r.buffer.values.const_data_ptr(),
                        z.mutable_data_ptr(), CudaCall(z).stream());
  if (!moves_running) return z;
  const NormalizationTensors& norm = r.layer.norm1;
  if (running.mean) {
    norm.running_mean->unsafeGetTensorImpl()->bump_version();
    norm.running_var->unsafeGetTensorImpl()->bump_version();
  } else {
    move_running_statistics(norm.running_mean, norm.running_var, r.layer.options1.momentum,
                            r.buffer.mean.narrow(0, 0, r.channels), r.buffer.var.narrow(0, 0, r.channels),
                            static_cast<double>(r.buffer.per_channel()));
  }
  return z;
}

const ConvolutionOptions& one_by_one() {
  static const ConvolutionOptions options{{1, 1}, {0, 0}, {1, 1}, 1};
  return options;
}

at::Tensor read_forward_on_cuda(const Read& r, bool moves_running) {
  return contiguous_in(r.buffer.layout,
                       convolution_detail::forward(normalized(r, moves_running), r.layer.conv1_weight,
                                                   std::nullopt, one_by_one(), r.precision));
}

/// Returns the gradient of z.
at::Tensor input_gradient(const Read& r, const at::Tensor& dh) {
  // The input gradient needs only the shape and layout of the convolution's input.
  return contiguous_in(r.buffer.layout,
                       convolution_detail::backward(dh, features_of(r), r.layer.conv1_weight, one_by_one(),
                                                    {true, false, false}, r.precision)
                           .input);
}

ReadGradients read_backward_on_cuda(const Read& r, const at::Tensor& dh, const at::Tensor& gradient,
                                    Corrections& corrections, const ReadWants& wants) {
  ReadGradients result;
  at::Tensor z;
  if (!r.normalizes) {
    if (wants.features) gradient.narrow(1, 0, r.channels).add_(input_gradient(r, dh));
    if (wants.conv_weight) z = normalized(r, false);
  } else if (wants.features || wants.weight || wants.bias) {
    const auto vector = [&](bool wanted) {
      return wanted ? at::empty({r.channels}, gradient.options()) : at::Tensor();
    };
    result.weight = vector(wants.weight);
    result.bias = vector(wants.bias);
    z = input_gradient(r, dh);  // holds dz until the kernel writes z over it
    cuda::DenseNormalizeBackward t;
    t.x = r.buffer.values.const_data_ptr();
    t.dz = z.mutable_data_ptr();
    t.makes_z = wants.conv_weight;
    if (wants.features) t.gradient = gradient.mutable_data_ptr();
    if (wants.weight) t.dweight = result.weight.mutable_data_ptr();
    if (wants.bias) t.dbias = result.bias.mutable_data_ptr();
    if (wants.features && r.layer.options1.training) {
      t.constant = corrections.constant.mutable_data_ptr<double>();
      t.per_deviation = corrections.per_deviation.mutable_data_ptr<double>();
    }
    const Vectors vectors(r);
    const kernels::DenseProductProblem shape = shape_of_read(r);
    CudaCall call(z);
    void* const workspace = call.workspace(cuda::dense_workspace_bytes(shape));
    cuda::dense_normalize_backward(shape, vectors.statistics(), t, {call.stream(), workspace});
  } else if (wants.conv_weight) {
    z = normalized(r, false);
  }
  if (wants.conv_weight)
    result.conv_weight = convolution_detail::backward(dh, z, r.layer.conv1_weight, one_by_one(),
                                                      {false, true, false}, r.precision)
                             .weight.to(r.layer.conv1_weight.scalar_type());
  return result;
}

at::Tensor feature_gradient_on_cuda(const Buffer& buffer, int64_t first, int64_t count,
                                    const at::Tensor& gradient, const Corrections& corrections) {
  at::Tensor df = empty_channels(buffer, count);
  const Shape3 shape = shape3(buffer.values);
  cuda::dense_feature_gradient(
      {shape.n, shape.s, first, count, shape.c, buffer.layout, dtype_of("dense_block", buffer.values)},
      {buffer.mean.defined() ? buffer.mean.const_data_ptr<double>() + first : nullptr,
       corrections.constant.const_data_ptr<double>() + first,
       corrections.per_deviation.const_data_ptr<double>() + first},
      buffer.values.const_data_ptr(), gradient.const_data_ptr(), df.mutable_data_ptr(),
      CudaCall(df).stream());
  return df;
}

void statistics_on_cuda(const at::Tensor& values, Layout layout, double* mean, double* var) {
  kernels::AbnProblem layer;
  layer.shape = shape3(values);
  layer.layout = layout;
  layer.dtype = dtype_of("dense_block", values);
  CudaCall call(values);
  void* const workspace = call.workspace(cuda::abn_workspace_bytes(layer));
  cuda::abn_statistics(layer, values.const_data_ptr(), mean, var, {call.stream(), workspace});
}

}  // namespace

const Device& cuda_device() {
  static constexpr Device device{false, read_forward_on_cuda, read_backward_on_cuda, feature_gradient_on_cuda,
                                 statistics_on_cuda};
  return device;
}

}  // namespace palimpsest::ops::dense_block_detail
