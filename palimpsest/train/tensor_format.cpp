#include "palimpsest/train/tensor_format.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"
#include "palimpsest/train/device.h"

#include <vector>

namespace palimpsest::train {

TensorFormat TensorFormat::parse(const std::string& dtype, bool channels_last, const std::string& precision,
                                 const std::string& device) {
  const auto computed = amp::parse_precision(precision);
  if (dtype == "f32") return {at::kFloat, channels_last, computed, parse_device(device)};
  if (dtype == "f64" && computed != amp::Precision::kF32)
    throw Error(ErrorKind::kUsage, "precision must be f32 with dtype f64, got " + precision +
                                       ": 16-bit arithmetic takes f32 parameters");
  if (dtype == "f64") return {at::kDouble, channels_last, computed, parse_device(device)};
  throw Error(ErrorKind::kUsage,
              unknown_name_message("dtype", dtype, std::vector<std::string>{"f32", "f64"}));
}

at::Tensor TensorFormat::convert(const at::Tensor& images) const {
  const auto layout =
      channels_last && images.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  return images.to(device, dtype).contiguous(layout);
}

void TensorFormat::convert(data::Batch& batch) const {
  batch.images = convert(data::normalized(batch.images.to(device), batch.normalization));
  if (!batch.targets.defined()) return;
  batch.targets = batch.targets.to(device);
  if (batch.targets.scalar_type() == at::kByte) batch.targets = batch.targets.to(at::kLong);
}

void TensorFormat::convert(torch::nn::Module& network) const {
  // Module::to(dtype) would also convert num_batches_tracked.
  network.apply([this](torch::nn::Module& module) {
    const auto convert_one = [this](at::Tensor& tensor) {
      const at::Tensor plain = tensor.detach();
      const at::Tensor converted = tensor.is_floating_point() ? convert(plain) : plain.to(device);
      if (!converted.is_same(tensor) && converted.data_ptr() != tensor.data_ptr()) tensor.set_data(converted);
    };
    for (auto& parameter : module.named_parameters(/*recurse=*/false)) convert_one(parameter.value());
    for (auto& buffer : module.named_buffers(/*recurse=*/false)) convert_one(buffer.value());
  });
}

}  // namespace palimpsest::train
