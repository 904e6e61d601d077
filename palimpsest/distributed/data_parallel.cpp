#include "palimpsest/distributed/data_parallel.h"

#include "palimpsest/base/printable.h"
#include "palimpsest/distributed/common/libtorch.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <cctype>
#include <optional>
#include <unordered_set>
#include <utility>

namespace palimpsest::distributed {
namespace {

/// Buckets hold a gradient in the order of its parameter's memory.
std::string strides_of(const at::Tensor& parameter) {
  if (parameter.is_contiguous()) return "";
  return fmt::format(" with strides [{}]", fmt::join(parameter.strides().vec(), ", "));
}

/// Returns one line per parameter and buffer.
std::string architecture_of(const torch::nn::Module& module) {
  std::string text;
  const auto add = [&](const char* kind, const std::string& name, const at::Tensor& tensor,
                       const std::string& more) {
    text += fmt::format("{} {}: {} [{}]{}{}\n", kind, name, c10::toString(tensor.scalar_type()),
                        fmt::join(tensor.sizes().vec(), ", "), more,
                        tensor.requires_grad() ? "" : " without gradient");
  };
  for (const auto& item : module.named_parameters())
    add("parameter", item.key(), item.value(), strides_of(item.value()));
  for (const auto& item : module.named_buffers()) add("buffer", item.key(), item.value(), "");
  return text;
}

std::optional<at::ScalarType> type_of(Compression compression) {
  switch (compression) {
    case Compression::kF16:
      return at::kHalf;
    case Compression::kBF16:
      return at::kBFloat16;
    case Compression::kNone:
      break;
  }
  return std::nullopt;
}

/// The type in which a bucket of `stored` travels.
at::ScalarType wire_type(at::ScalarType stored, Compression compression) {
  const auto narrow = type_of(compression);
  const bool is_wide = stored == at::kFloat || stored == at::kDouble;
  return narrow && is_wide ? *narrow : stored;
}

using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

/// Averages a bucket over the ranks. c10d::Reducer calls it when the last gradient of the bucket is there.
class AverageBucket : public c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
 public:
  AverageBucket(const c10::intrusive_ptr<c10d::ProcessGroup>& group, Compression compression,
                std::vector<at::Tensor> parameters)
      : CppCommHookInterface(group), compression_(compression), parameters_(std::move(parameters)) {}

  FuturePtr runHook(c10d::GradBucket& bucket) override {
    if (bucket.isLast()) share_buckets_with_gradients();
    const at::NoGradGuard no_grad;
    const OperationName name(fmt::format("the gradients, bucket {}", bucket.getIndex()));
    at::Tensor gradients = bucket.getBufferRef();
    // Before the cast: the sum of 16-bit values would overflow where the average does not.
    gradients.div_(state_->getSize());
    const auto type = wire_type(gradients.scalar_type(), compression_);
    std::vector<at::Tensor> sent{type == gradients.scalar_type() ? gradients : gradients.to(type)};
    FuturePtr sum = state_->allreduce(sent)->getFuture();
    if (type == gradients.scalar_type()) return sum;
    return sum->then(
        [gradients, narrow = sent[0]](c10::ivalue::Future& done) {
          (void)done.value();  // throws if the collective failed
          const at::NoGradGuard copies_only;
          gradients.copy_(narrow);
          return c10::IValue(std::vector<at::Tensor>{gradients});
        },
        sum->elementType());
  }

 private:
  /// Makes the gradients tensors of their own in the memory of the buckets when backward is done. The
  /// reducer sets views of the bucket, of which Optimizer::zero_grad of C++ cannot detach itself.
  void share_buckets_with_gradients() const {
    auto& engine = torch::autograd::Engine::get_default_engine();
    // The reducer sets the gradients in a callback at the end of backward, which it queues after this hook.
    // A callback that is queued by a callback comes after that.
    engine.queue_callback([&engine, parameters = parameters_] {
      engine.queue_callback([parameters] {
        for (const auto& parameter : parameters)
          if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad().detach();
      });
    });
  }

  const Compression compression_;
  const std::vector<at::Tensor> parameters_;
};

/// Gives the gradient of a parameter the parameter's strides, if they differ in dimensions of size 1 alone:
/// the kernel of a 1x1 convolution is contiguous and channels-last at once. c10d::Reducer warns of them.
at::Tensor with_strides_of(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (!gradient.defined() || gradient.layout() != at::kStrided || gradient.sizes() != parameter.sizes() ||
      gradient.strides() == parameter.strides())
    return gradient;
  for (int64_t d = 0; d < gradient.dim(); ++d)
    if (gradient.size(d) != 1 && gradient.stride(d) != parameter.stride(d)) return gradient;
  return gradient.as_strided(parameter.sizes(), parameter.strides());
}

DataParallelOptions checked(const DataParallelOptions& o) {
  if (o.bucket_bytes < 1 || o.first_bucket_bytes < 1)
    throw Error(ErrorKind::kUsage,
                fmt::format("[DataParallel] bucket_bytes and first_bucket_bytes must be at least "
                            "1, got {} and {}",
                            o.bucket_bytes, o.first_bucket_bytes));
  return o;
}

}  // namespace

class DataParallel::Impl {
 public:
  Impl(Group& group_, torch::nn::Module& module_, const DataParallelOptions& options_)
      : group(group_), module(module_), options(checked(options_)) {
    group.require_same(architecture_of(module), "the networks");
    auto all = module.parameters();
    for (const auto& buffer : module.buffers()) all.push_back(buffer);
    group.broadcast(all, "the first weights");
    std::unordered_set<const at::TensorImpl*> known;  // a shared parameter has several names
    for (const auto& item : module.named_parameters())
      if (item.value().requires_grad() && known.insert(item.value().unsafeGetTensorImpl()).second) {
        names.push_back(item.key());
        parameters.push_back(item.value());
      }
    if (group.size() == 1 || parameters.empty()) return;
    const ReducerOptions reducing{options.first_bucket_bytes, options.bucket_bytes,
                                  options.find_unused_parameters};
    const Buckets buckets = assign_buckets(parameters, reducing);
    bucket_count = static_cast<int64_t>(buckets.size());
    for (const auto& bucket : buckets)
      for (const std::size_t i : bucket)
        bytes_per_step += parameters[i].numel() * static_cast<int64_t>(c10::elementSize(wire_type(
                                                      parameters[i].scalar_type(), options.compression)));
    // The hook must not hold the parameter, which holds the hook.
    for (const at::Tensor& parameter : parameters)
      hooks.push_back(parameter.register_hook([like = parameter.detach()](const at::Tensor& gradient) {
        return with_strides_of(like, gradient);
      }));
    reducer = make_reducer(parameters, names, buckets, group.process_group(), reducing);
    reducer->register_comm_hook(
        std::make_unique<AverageBucket>(group.process_group(), options.compression, parameters));
  }

  ~Impl() {
    for (std::size_t i = 0; i < hooks.size(); ++i) parameters[i].remove_hook(hooks[i]);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void explain(const c10::Error& error) const;

  Group& group;
  torch::nn::Module& module;
  const DataParallelOptions options;
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
  std::vector<unsigned> hooks;             // of the parameters
  std::shared_ptr<c10d::Reducer> reducer;  // none for one rank alone, or if no parameter has a gradient
  int64_t bucket_count = 0, bytes_per_step = 0;
  bool quiet = false;
};

/// Throws our error, with names, if the reducer's says that a backward pass was not complete.
void DataParallel::Impl::explain(const c10::Error& error) const {
  const std::string text = error.what_without_backtrace();
  if (text.find("finished reduction") == std::string::npos) return;
  std::string missing;
  const std::string mark = "rank " + std::to_string(group.rank()) + ": ";
  if (auto at = text.find(mark); at != std::string::npos && text.find("indices") < at) {
    const std::string numbers = text.substr(at + mark.size());
    std::size_t index = 0;
    int named = 0;
    for (std::size_t i = 0; i < numbers.size() && named < 3; ++i) {
      if (!std::isdigit(static_cast<unsigned char>(numbers[i]))) {
        if (numbers[i] == ' ') continue;
        break;
      }
      std::size_t length = 0;
      index = std::stoul(numbers.substr(i), &length);
      i += length;
      if (index >= names.size()) break;
      missing += (named++ ? ", " : ": ") + names[index];
    }
  }
  throw Error(
      ErrorKind::kUsage,
      fmt::format("[DataParallel] each backward must reach every parameter; in the last one parameters got "
                  "no gradient{}: set find_unused_parameters, freeze them before the constructor, or run "
                  "backward once per prepare()",
                  printable(shortened(missing, 300))));
}

DataParallel::DataParallel(Group& group, torch::nn::Module& module, const DataParallelOptions& options)
    : impl_(std::make_unique<Impl>(group, module, options)) {}
DataParallel::~DataParallel() = default;

void DataParallel::prepare(const std::vector<at::Tensor>& outputs) {
  impl_->group.check();
  if (!impl_->reducer || impl_->quiet) return;
  const OperationName name("the use of parameters");
  try {
    impl_->reducer->check_finalized();
    impl_->reducer->prepare_for_forward();
    impl_->reducer->prepare_for_backward(impl_->options.find_unused_parameters ? outputs
                                                                               : std::vector<at::Tensor>());
  } catch (const c10::Error& error) {
    impl_->explain(error);
    throw;
  }
}

void DataParallel::prepare(const at::Tensor& loss) {
  prepare(std::vector<at::Tensor>{loss});
}

DataParallel::NoSync::NoSync(DataParallel& parallel)
    : parallel_(parallel), outer_(std::exchange(parallel.impl_->quiet, true)) {}
DataParallel::NoSync::~NoSync() {
  parallel_.impl_->quiet = outer_;
}
DataParallel::NoSync DataParallel::no_sync() {
  return NoSync(*this);
}

double DataParallel::loss_factor(int64_t local_count, int64_t total_count) const {
  if (local_count < 0 || total_count < 1 || local_count > total_count)
    throw Error(ErrorKind::kUsage,
                fmt::format("[DataParallel] counts must satisfy 0 <= local <= total and total >= "
                            "1, got {} and {}",
                            local_count, total_count));
  return static_cast<double>(local_count) * impl_->group.size() / static_cast<double>(total_count);
}

void DataParallel::broadcast_buffers() {
  impl_->group.broadcast(impl_->module.buffers(), "the buffers");
}

int64_t DataParallel::bucket_count() const {
  return impl_->bucket_count;
}
int64_t DataParallel::bytes_per_step() const {
  return impl_->bytes_per_step;
}

}  // namespace palimpsest::distributed
