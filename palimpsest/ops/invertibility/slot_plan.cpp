#include "palimpsest/ops/invertibility/slot_plan.h"

#include "palimpsest/base/recomputing.h"
#include "palimpsest/ops/common/cuda_call.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

namespace palimpsest::ops::invertibility {
namespace {

using kernels::SlotReport;

std::atomic<int64_t> waits{0}, late_of_ended_plans{0};

/// The reports, which are never freed, because work that is queued (or a CUDA graph) may write to them at any
/// time. A report that was given back is used again as late as possible.
class Reports {
 public:
  static Reports& instance() {
    static auto& all = *new Reports;  // outlives libtorch
    return all;
  }

  SlotReport* take() {
    const std::scoped_lock lock(mutex_);
    if (free_.size() < kAtLeastFree) {
      auto* const more = static_cast<SlotReport*>(CudaCall::mapped_memory(kAtOnce * sizeof(SlotReport)));
      for (std::size_t i = 0; i < kAtOnce; ++i) free_.push_front(more + i);
    }
    SlotReport* const report = free_.front();
    free_.pop_front();
    *report = {};
    return report;
  }

  void give_back(SlotReport* report) {
    late_of_ended_plans += static_cast<int64_t>(late_of(report));
    const std::scoped_lock lock(mutex_);
    free_.push_back(report);
  }

  static unsigned long long late_of(const SlotReport* report) {
    return __atomic_load_n(&report->late, __ATOMIC_RELAXED);
  }

 private:
  static constexpr std::size_t kAtOnce = 256, kAtLeastFree = 64;

  std::mutex mutex_;
  std::deque<SlotReport*> free_;
};

/// The writes to weight and bias since they exist.
int64_t version_of(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias) {
  int64_t version = 0;
  for (const auto* t : {&weight, &bias})
    if (*t && !(*t)->is_inference()) version += (*t)->_version();
  return version;
}

/// Returns whether this pass computes again what an earlier pass computed.
bool runs_again() {
  return recomputing() || torch::autograd::get_current_graph_task_id() >= 0;
}

/// The slots of one layer's passes, or of all layers of one kind.
class SlotPlan {
 public:
  SlotPlan(int64_t channels, std::size_t most_reports) : channels_(channels), most_reports_(most_reports) {}
  ~SlotPlan() {
    for (SlotReport* report : reports_) Reports::instance().give_back(report);
  }
  SlotPlan(const SlotPlan&) = delete;
  SlotPlan& operator=(const SlotPlan&) = delete;

  /// `version`: of the values. `wait(report)` fills the report now; null if waiting is not allowed.
  PlannedSlots next(int64_t version, bool again, const std::function<void(SlotReport*)>* wait) {
    const std::scoped_lock lock(mutex_);
    const int64_t writes = slots_ ? version - version_ : 0;
    if (!slots_ || writes != 0 || (again ? !had_first_run_ : had_backward_)) {
      read_reports();
      if (writes != 0 || !knows_steps()) begin_step();
      if (wait && (!slots_ || !is_step(writes))) {
        ++waits;
        (*wait)(report_of_pass());
        read_reports();
      }
      if (latest_ == SlotReport::kUnknown) {
        TORCH_WARN_ONCE(
            "[abn] a CUDA graph captures a layer that has not run before: its weight is not known, and the "
            "layer saves the normalized x of all channels, one more tensor; run one training step before the "
            "capture");
      } else {
        const int64_t wanted = slots_for(std::max(before_, kernels::unpack_counts(latest_).near), channels_);
        const bool within_step = writes == 0 && knows_steps();
        slots_ = within_step ? std::max(slots_.value_or(0), wanted) : wanted;
      }
      if (writes != 0) usual_writes_ = writes;
      if (writes != 0 || least_slots_ < 0) least_slots_ = channels_;
      version_ = version;
      had_first_run_ = had_backward_ = false;
    }
    warn_if_late();
    ++(again ? other_runs_ : first_runs_);
    if (!again) had_first_run_ = true, had_backward_ = false;
    const int64_t count = slots_.value_or(channels_);
    least_slots_ = std::min(least_slots_, count);
    return {count, report_of_pass(), again};
  }

  void note_backward() {
    const std::scoped_lock lock(mutex_);
    had_backward_ = true;
  }

  bool always_had_slots(int64_t version) {
    const std::scoped_lock lock(mutex_);
    return version == version_ && least_slots_ > 0;
  }

  int64_t late() {
    const std::scoped_lock lock(mutex_);
    int64_t sum = 0;
    for (const SlotReport* report : reports_) sum += static_cast<int64_t>(Reports::late_of(report));
    return sum;
  }

 private:
  static constexpr int64_t kMostWritesOfAStep = 4;  // to weight and bias: AdamW writes each twice

  /// Returns whether writes end the steps of the layer. Else each backward pass does: for a plan that layers share, whose
  /// version stays 0, and for weights that nobody writes.
  bool knows_steps() const { return usual_writes_ != 0; }

  bool is_step(int64_t writes) const {
    if (writes == 0) return true;
    return had_backward_ && (writes == usual_writes_ || (usual_writes_ == 0 && writes <= kMostWritesOfAStep));
  }

  SlotReport* report_of_pass() {
    if (passes_ == reports_.size() && passes_ < most_reports_) reports_.push_back(Reports::instance().take());
    return reports_[passes_++ % reports_.size()];
  }

  /// Takes the largest count of the reports that have arrived. Keeps what is known if there is none.
  void read_reports() {
    int64_t most = SlotReport::kUnknown;
    for (SlotReport* report : reports_)
      most = std::max(most, __atomic_exchange_n(&report->counts, SlotReport::kUnknown, __ATOMIC_RELAXED));
    passes_ = 0;
    if (most == SlotReport::kUnknown) return;
    // Reports of other uses of the layer, or of other layers of its kind, may still be on their way: those of the step
    // before count, too. A pass that runs again has the count of its first run.
    if (!latest_is_of_step_)
      before_ = std::max(uses_, first_runs_) > 1 && latest_ != SlotReport::kUnknown
                    ? kernels::unpack_counts(latest_).near
                    : 0;
    latest_ = latest_is_of_step_ ? std::max(latest_, most) : most;
    latest_is_of_step_ = true;
  }

  void begin_step() {
    latest_is_of_step_ = false;
    uses_ = first_runs_ > 0 ? first_runs_ : other_runs_;
    first_runs_ = other_runs_ = 0;
  }

  void warn_if_late() {
    unsigned long long late = 0;
    for (const SlotReport* report : reports_) late += Reports::late_of(report);
    if (late == known_late_) return;
    TORCH_WARN_ONCE("[abn] ", late - known_late_,
                    " channels of a layer became non-invertible (|weight| near zero) within one step, "
                    "more than there were slots for: their gradients in that step had few digits or none. "
                    "abn_fallback_stats().late counts such channels");
    known_late_ = late;
  }

  std::mutex mutex_;
  const int64_t channels_;
  const std::size_t most_reports_;
  std::vector<SlotReport*> reports_;
  std::size_t passes_ = 0;                       ///< since the last read_reports
  std::size_t first_runs_ = 0, other_runs_ = 0;  ///< passes of the step; other_runs_: that run again
  std::size_t uses_ = 0;                         ///< passes of the step before, each counted once
  /// The most of the latest step of which reports have arrived, and the near channels of the step before it.
  int64_t latest_ = SlotReport::kUnknown, before_ = 0;
  bool latest_is_of_step_ = false;  ///< later reports of the step add to latest_
  unsigned long long known_late_ = 0;
  std::optional<int64_t> slots_;  ///< none: nothing is known
  int64_t least_slots_ = -1;      ///< of the passes with these values
  int64_t version_ = 0, usual_writes_ = 0;
  bool had_first_run_ = false, had_backward_ = false;  ///< since `slots_` was decided
};

/// All plans: one per parameter, and one per kind of layers whose weights are computed.
class Plans {
 public:
  static Plans& instance() {
    static auto& all = *new Plans;  // outlives libtorch
    return all;
  }

  /// `key`: the weight, else the bias, else undefined. Returns the plan, and whether it belongs to `key`
  /// alone.
  std::pair<std::shared_ptr<SlotPlan>, bool> of(const Layer& layer, const at::Tensor& key,
                                                const at::Tensor& like) {
    const auto& p = layer.problem;
    const std::scoped_lock lock(mutex_);
    Kind& kind = kinds_[{like.device().index(), p.activation, p.dtype, p.shape.c, p.shape.s}];
    if (key.defined() && key.is_leaf()) {
      const Place place = place_of(key);
      const auto found = parameters_.find(place);
      if (found != parameters_.end()) return {found->second.plan, true};
      if (key.requires_grad() || kind.constants++ < kMostOfAKind) {
        forget_dead();
        auto plan = std::make_shared<SlotPlan>(p.shape.c, kPassesOfAStep);
        parameters_.emplace(place, Parameter{key.storage().getWeakStorageImpl(), plan});
        return {std::move(plan), true};
      }
    }
    if (!kind.plan) kind.plan = std::make_shared<SlotPlan>(p.shape.c, kMostOfAKind);
    return {kind.plan, false};
  }

  std::shared_ptr<SlotPlan> find(const at::Tensor& key) {
    const std::scoped_lock lock(mutex_);
    const auto found = parameters_.find(place_of(key));
    return found == parameters_.end() ? nullptr : found->second.plan;
  }

  /// A computed weight names no plan: any of its kind may be meant.
  void note_backward_of_all_kinds() {
    const std::scoped_lock lock(mutex_);
    for (auto& [name, kind] : kinds_)
      if (kind.plan) kind.plan->note_backward();
  }

  int64_t late() {
    const std::scoped_lock lock(mutex_);
    int64_t sum = late_of_ended_plans;
    for (const auto& [place, parameter] : parameters_) sum += parameter.plan->late();
    for (const auto& [name, kind] : kinds_) sum += kind.plan ? kind.plan->late() : 0;
    return sum;
  }

 private:
  /// More than a network has layers of one kind, and so more than its frozen weights.
  static constexpr std::size_t kMostOfAKind = 256;
  /// Passes of one parameter in a step whose reports are kept apart: uses of a shared layer, parts of a batch,
  /// passes that run again. Later ones take the place of earlier ones.
  static constexpr std::size_t kPassesOfAStep = 16;

  struct Kind {
    std::shared_ptr<SlotPlan> plan;
    /// Weights that require no gradient and are no result of the graph: frozen ones, or what a compiled graph
    /// computes anew in each pass, for which the host must not wait for ever.
    std::size_t constants = 0;
  };
  using Place = std::tuple<const c10::StorageImpl*, int64_t, int64_t>;  // storage, offset, channels
  struct Parameter {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::shared_ptr<SlotPlan> plan;
  };

  static Place place_of(const at::Tensor& t) {
    return {t.storage().unsafeGetStorageImpl(), t.storage_offset(), t.numel()};
  }

  void forget_dead() {
    if (parameters_.size() < room_) return;
    std::erase_if(parameters_, [](const auto& entry) { return entry.second.storage.expired(); });
    room_ = std::max<std::size_t>(64, 2 * parameters_.size());
  }

  std::mutex mutex_;
  /// The keys are unique: a storage's address stays taken while a parameter refers to it, even weakly.
  std::map<Place, Parameter> parameters_;
  std::map<std::tuple<c10::DeviceIndex, Activation, DType, int64_t, int64_t>, Kind> kinds_;
  std::size_t room_ = 64;
};

at::Tensor key_of(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias) {
  return weight ? *weight : bias.value_or(at::Tensor());
}

}  // namespace

int64_t slots_for(int64_t wanted, int64_t channels) {
  return wanted > std::max<int64_t>(1, channels / 32) ? channels : wanted;
}

PlannedSlots plan_slots(const Layer& layer, const at::Tensor& like) {
  const CudaCall call(like);
  const std::function<void(SlotReport*)> wait = [&](SlotReport* report) {
    layer.choose_slots({.report = report, .counts_late = false});
    call.synchronize();
  };
  const auto [plan, is_own] = Plans::instance().of(layer, key_of(layer.weight, layer.bias), like);
  return plan->next(is_own ? version_of(layer.weight, layer.bias) : 0, runs_again(),
                    call.is_capturing() ? nullptr : &wait);
}

void note_backward(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias) {
  const at::Tensor key = key_of(weight, bias);
  const auto plan = key.defined() ? Plans::instance().find(key) : nullptr;
  if (plan)
    plan->note_backward();
  else
    Plans::instance().note_backward_of_all_kinds();
}

bool always_had_slots(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias) {
  const at::Tensor key = key_of(weight, bias);
  const auto plan = key.defined() ? Plans::instance().find(key) : nullptr;
  return plan && plan->always_had_slots(version_of(weight, bias));
}

int64_t host_waits() {
  return waits;
}

int64_t late_channels() {
  return Plans::instance().late();
}

}  // namespace palimpsest::ops::invertibility
