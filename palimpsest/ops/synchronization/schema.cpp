#include "palimpsest/base/segment_log.h"
#include "palimpsest/ops/group_traffic.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <tuple>

/// Registers torch.ops.palimpsest.group_traffic and reset_group_traffic, and the class
/// torch.classes.palimpsest.SegmentLog: base/segment_log.h for Python's context managers.
namespace palimpsest::ops::synchronization {
namespace {

/// A log with its present recording or replay. Each begin has its end, on the same thread.
class PythonLog : public torch::CustomClassHolder {
 public:
  void begin_recording() { recording_.emplace(log_); }
  void begin_replay() { replay_.emplace(log_); }
  void end() {
    replay_.reset();
    recording_.reset();
  }

 private:
  SegmentLog log_;
  std::optional<SegmentLog::Recording> recording_;
  std::optional<SegmentLog::Replay> replay_;
};

TORCH_LIBRARY_FRAGMENT(palimpsest, m) {
  m.def("group_traffic() -> (int collectives, int bytes)", [] {
    const GroupTraffic traffic = group_traffic();
    return std::tuple(traffic.collectives, traffic.bytes);
  });
  m.def("reset_group_traffic() -> ()", &reset_group_traffic);
  m.class_<PythonLog>("SegmentLog")
      .def(torch::init<>())
      .def("begin_recording", &PythonLog::begin_recording)
      .def("begin_replay", &PythonLog::begin_replay)
      .def("end", &PythonLog::end);
}

}  // namespace
}  // namespace palimpsest::ops::synchronization
