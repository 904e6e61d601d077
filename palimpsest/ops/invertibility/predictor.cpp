#include "palimpsest/ops/invertibility/predictor.h"

#include "palimpsest/kernels/formulas/invertibility.h"
#include "palimpsest/ops/common/backend.h"
#include "palimpsest/ops/common/cuda_call.h"
#include "palimpsest/ops/common/dtype.h"
#include "palimpsest/ops/invertibility/fallback_stats.h"
#include "palimpsest/ops/invertibility/host_vector.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace palimpsest::ops::invertibility {
namespace {

std::atomic<int64_t> waits{0};

/// The values that decide: (C) each, on the host, of any floating dtype and stride; undefined if absent.
struct Values {
  at::Tensor weight, bias, residual_rms;
  /// How far weight and bias may have moved since these values were read. A channel that is non-invertible
  /// anywhere within this distance counts as non-invertible.
  at::Tensor weight_moved, bias_moved;
};

/// Returns the channels that kernels::InvertibilityCriterion finds non-invertible anywhere within the moves.
std::vector<int64_t> non_invertible_channels(const Layer& layer, const Values& values) {
  const kernels::InvertibilityCriterion criterion(layer.activation, dtype_of(layer.storage),
                                                  layer.activation_param);
  const HostVector gamma(values.weight, 1), beta(values.bias, 0), rms(values.residual_rms, 0),
      gamma_moved(values.weight_moved, 0), beta_moved(values.bias_moved, 0);
  std::vector<int64_t> result;
  for (int64_t c = 0; c < layer.channels; ++c)
    if (!criterion.is_invertible_within(gamma.at(c), gamma_moved.at(c), beta.at(c), beta_moved.at(c),
                                        rms.at(c)))
      result.push_back(c);
  return result;
}

/// Returns the root mean square of each channel over at most 4 images and about 64 pixels of each, which is
/// exact within 5 %. (Four times as many pixels took 1 % of a ResNeXt-50 step.)
at::Tensor sampled_rms(const Tensors& tensors) {
  constexpr int64_t kImages = 4, kPixels = 64;
  if (!tensors.residual || tensors.residual->numel() == 0) return {};
  at::Tensor t = *tensors.residual;
  t = t.narrow(0, 0, std::min(t.size(0), kImages));
  int64_t pixels = 1;
  for (int64_t d = 2; d < t.dim(); ++d) pixels *= t.size(d);
  // The step is the same along every axis; a shorter axis gives its first value.
  const double share = static_cast<double>(pixels) / kPixels;
  const auto step =
      t.dim() > 2
          ? std::max<int64_t>(1, std::llround(std::pow(share, 1.0 / static_cast<double>(t.dim() - 2))))
          : 1;
  std::vector<int64_t> reduced{0};
  for (int64_t d = 2; d < t.dim(); ++d) {
    t = t.slice(d, 0, t.size(d), step);
    reduced.push_back(d);
  }
  t = t.to(at::kDouble);
  if (tensors.relu_residual) t = t.clamp_min(0);
  return t.square().mean(reduced).sqrt_();
}

at::Tensor or_undefined(const std::optional<at::Tensor>& t) {
  return t ? *t : at::Tensor();
}

at::Tensor index_of(const std::vector<int64_t>& channels, at::Device device) {
  if (channels.empty()) return {};
  const at::Tensor index = at::tensor(channels);
  return device.is_cuda() ? index.pin_memory().to(device, /*non_blocking=*/true) : index;
}

/// A vector on the device, and its values that the host knows.
class WatchedVector {
 public:
  const at::Tensor& known() const { return known_; }
  const at::Tensor& moved() const { return moved_; }
  bool fits(const at::Tensor& t) const {
    return t.defined() == known_.defined() && (!t.defined() || t.size(0) == known_.size(0));
  }

  /// Reads the values. Blocks until they are on the host.
  void read(const at::Tensor& t) {
    known_ = t.defined() ? t.to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous()
                         : at::Tensor();
    moved_ = arriving_ = at::Tensor();
  }

  void queue(const at::Tensor& t) {
    if (!t.defined()) return;
    if (!arriving_.defined())
      arriving_ = at::empty(t.sizes(), t.options().device(at::kCPU).pinned_memory(t.is_cuda()));
    arriving_.copy_(t, /*non_blocking=*/true);
  }

  /// Assumes a change of `share` when no earlier step is known.
  void foresee(double share) {
    if (known_.defined()) moved_ = share * known_.abs();
  }

  /// Takes the values that were queued and have arrived. moved() becomes 4 times the change, but at most
  /// `share` of the value. It stays as it is if nothing changed, because a step may take several passes.
  void take(double share) {
    if (!arriving_.defined()) return;
    const HostVector arrived(arriving_, 0);
    double* const known = known_.mutable_data_ptr<double>();
    const int64_t size = known_.size(0);
    bool changed = false;
    for (int64_t c = 0; c < size; ++c) changed = changed || arrived.at(c) != known[c];
    if (!changed) return;
    if (!moved_.defined()) moved_ = at::empty_like(known_);
    double* const moved = moved_.mutable_data_ptr<double>();
    for (int64_t c = 0; c < size; ++c) {
      const double value = arrived.at(c);
      moved[c] = std::min(4 * std::abs(value - known[c]), share * std::abs(value));
      known[c] = value;
    }
  }

 private:
  at::Tensor known_, moved_;  ///< f64
  at::Tensor arriving_;       ///< page-locked: a copy to other memory would wait
};

/// The history of one weight (of the bias, if there is no weight).
class History {
 public:
  explicit History(const at::Tensor& key) : storage_(key.storage().getWeakStorageImpl()) {}

  bool expired() const { return storage_.expired(); }

  std::optional<Choice> choose(const Layer& layer, const Tensors& tensors, const at::Tensor& like,
                               bool capturing) {
    const std::scoped_lock lock(mutex_);
    if (capturing) {
      if (choice_ && choice_->index.defined()) captured_.push_back(choice_->index);
      return choice_;
    }
    const at::Tensor weight = or_undefined(tensors.weight), bias = or_undefined(tensors.bias);
    const bool first = !choice_;
    const int64_t version = version_of(tensors.weight, tensors.bias), writes = first ? 0 : version - version_;
    const bool first_step = usual_writes_ == 0 && saw_backward_ && writes > 0 && writes <= kMostWritesOfAStep;
    const bool usual = writes == 0 || writes == usual_writes_ || first_step;
    if (writes != 0) usual_writes_ = writes, saw_backward_ = false;
    version_ = version;
    const bool sample = passes_++ % kPassesOfSample == 0;
    const at::Tensor rms = sample ? sampled_rms(tensors) : at::Tensor();
    if (arriving_) arriving_->synchronize();
    if (first || !usual || !weight_.fits(weight) || !bias_.fits(bias) ||
        (tensors.residual && !rms_.known().defined())) {
      ++waits;
      weight_.read(weight);
      bias_.read(bias);
      rms_.read(sample ? rms : sampled_rms(tensors));
    } else {
      weight_.take(kShareOfAStep);
      if (first_step) weight_.foresee(kShareOfAStep);
      bias_.take(std::numeric_limits<double>::infinity());
      rms_.take(0);
      report_missed(layer);
    }
    std::vector<int64_t> channels = non_invertible_channels(
        layer, {weight_.known(), bias_.known(), rms_.known(), weight_.moved(), bias_.moved()});
    if (first || choice_->channels != channels) choice_ = Choice{channels, index_of(channels, like.device())};
    always_some_ = !channels.empty() && (first || writes != 0 || always_some_);
    weight_.queue(weight);
    bias_.queue(bias);
    if (sample) rms_.queue(rms);
    if (like.is_cuda()) {
      if (!arriving_) arriving_ = std::make_unique<c10::Event>(like.device().type());
      arriving_->record(c10::impl::VirtualGuardImpl(like.device().type()).getStream(like.device()));
    }
    return choice_;
  }

  void saw_backward() {
    const std::scoped_lock lock(mutex_);
    saw_backward_ = true;
  }

  bool always_chose_some(int64_t version) {
    const std::scoped_lock lock(mutex_);
    return choice_ && always_some_ && version == version_;
  }

  static int64_t version_of(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias) {
    int64_t version = 0;
    for (const auto* t : {&weight, &bias})
      if (*t && !(*t)->is_inference()) version += (*t)->_version();
    return version;
  }

 private:
  static constexpr int64_t kPassesOfSample = 16;
  static constexpr int64_t kMostWritesOfAStep = 4;  // to weight and bias: AdamW writes each twice
  static constexpr double kShareOfAStep = 0.75;     // the most that a weight is assumed to lose in a step

  /// Reports the non-invertible channels that the previous pass missed: it used choice_, and the values of
  /// its weight and bias have arrived.
  void report_missed(const Layer& layer) {
    const std::vector<int64_t> want =
        non_invertible_channels(layer, {weight_.known(), bias_.known(), rms_.known(), {}, {}});
    std::vector<int64_t> missed;
    std::set_difference(want.begin(), want.end(), choice_->channels.begin(), choice_->channels.end(),
                        std::back_inserter(missed));
    if (missed.empty()) return;
    count_late_channels(static_cast<int64_t>(missed.size()));
    TORCH_WARN_ONCE("[abn] ", missed.size(),
                    " channels of a layer became non-invertible (|weight| near zero) within one step, "
                    "more than was predicted: their gradients in that step had few digits or none. "
                    "abn_fallback_stats().late counts such channels");
  }

  std::mutex mutex_;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  WatchedVector weight_, bias_, rms_;
  std::unique_ptr<c10::Event> arriving_;
  std::optional<Choice> choice_;
  std::vector<at::Tensor> captured_;  ///< indices that CUDA graphs read in every replay
  int64_t version_ = 0, usual_writes_ = 0, passes_ = 0;
  bool always_some_ = false, saw_backward_ = false;
};

/// The histories of all weights that are alive.
class Histories {
 public:
  static Histories& instance() {
    static auto& all = *new Histories;  // outlives libtorch
    return all;
  }

  std::shared_ptr<History> of(const at::Tensor& t, bool make) {
    const std::scoped_lock lock(mutex_);
    const std::pair key{t.storage().unsafeGetStorageImpl(), t.storage_offset()};
    const auto found = histories_.find(key);
    if (found != histories_.end()) return found->second;
    if (!make) return nullptr;
    if (histories_.size() >= room_) {
      std::erase_if(histories_, [](const auto& entry) { return entry.second->expired(); });
      room_ = std::max<std::size_t>(64, 2 * histories_.size());
    }
    return histories_[key] = std::make_shared<History>(t);
  }

 private:
  std::mutex mutex_;
  /// The keys are unique: a storage's address stays taken while a history refers to it, even weakly.
  std::map<std::pair<const c10::StorageImpl*, int64_t>, std::shared_ptr<History>> histories_;
  std::size_t room_ = 64;
};

Choice read_now(const Layer& layer, const Tensors& tensors, const at::Tensor& like) {
  std::vector<int64_t> channels = non_invertible_channels_now(layer, tensors);
  at::Tensor index = index_of(channels, like.device());
  return {std::move(channels), std::move(index)};
}

}  // namespace

std::vector<int64_t> non_invertible_channels_now(const Layer& layer, const Tensors& tensors) {
  const at::AutoDispatchBelowADInplaceOrView no_graph;
  const auto host = [](const at::Tensor& t) { return t.defined() ? t.cpu() : t; };
  return non_invertible_channels(layer, {host(or_undefined(tensors.weight)),
                                         host(or_undefined(tensors.bias)),
                                         host(sampled_rms(tensors)),
                                         {},
                                         {}});
}

std::optional<Choice> choose_channels(const Layer& layer, const Tensors& tensors, const at::Tensor& like) {
  const at::AutoDispatchBelowADInplaceOrView no_graph;
  if (!host_runs_ahead(backend_of("abn", like))) return read_now(layer, tensors, like);
  const bool capturing = CudaCall(like).is_capturing();
  if (tensors.weight || tensors.bias)
    return Histories::instance()
        .of(tensors.weight ? *tensors.weight : *tensors.bias, /*make=*/true)
        ->choose(layer, tensors, like, capturing);
  if (tensors.residual && capturing) return std::nullopt;
  if (tensors.residual) ++waits;
  return read_now(layer, tensors, like);
}

void saw_backward(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias) {
  if (!weight && !bias) return;
  if (const auto history = Histories::instance().of(weight ? *weight : *bias, /*make=*/false))
    history->saw_backward();
}

bool always_chose_some(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias) {
  if (!weight && !bias) return false;
  const auto history = Histories::instance().of(weight ? *weight : *bias, /*make=*/false);
  return history && history->always_chose_some(History::version_of(weight, bias));
}

int64_t host_waits() {
  return waits;
}

}  // namespace palimpsest::ops::invertibility
