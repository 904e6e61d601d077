#include "palimpsest/ops/synchronization/process_group.h"

#include "palimpsest/base/operation_name.h"
#include "palimpsest/ops/group_traffic.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <exception>
#include <string>
#include <vector>

namespace palimpsest::ops {
namespace synchronization {
namespace {

std::atomic<int64_t> collectives{0}, bytes{0};

c10::intrusive_ptr<c10d::ProcessGroup> find(const std::string& group) {
  try {
    return c10d::resolve_process_group(group);
  } catch (const std::exception&) {
    TORCH_CHECK(false, "[abn] group must be the name of a process group of this process, got '", group,
                "'; connect the group first, and pass its name (in Python: group.group_name)");
  }
}

[[noreturn]] void fail(const std::string& operation, const std::string& group,
                       const c10d::ProcessGroup& found, std::string reason) {
  reason = reason.substr(0, reason.find('\n'));
  TORCH_CHECK(false, "[abn] ", operation, " over the group '", group, "' failed on rank ", found.getRank(),
              " of ", found.getSize(), ": ", reason);
}

/// Runs a collective on `sent`, this rank's values.
template <class Collective>
void run(const std::string& operation, const at::Tensor& sent, const std::string& group,
         const Collective& collective) {
  const auto found = find(group);
  ++collectives;
  bytes += static_cast<int64_t>(sent.nbytes());
  const OperationName name(operation);
  try {
    collective(*found)->wait();
  } catch (const c10::Error& error) {
    fail(operation, group, *found, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(operation, group, *found, error.what());
  }
}

}  // namespace

int64_t size(const std::string& group) {
  return find(group)->getSize();
}

at::Tensor all_gather(const at::Tensor& mine, const std::string& group) {
  const int64_t ranks = size(group);
  at::Tensor all = at::empty({ranks * mine.numel()}, mine.options());
  run("gathering the statistics of a normalization", mine, group, [&](c10d::ProcessGroup& found) {
    at::Tensor output = all, input = mine;
    return found._allgather_base(output, input);
  });
  return all.view({ranks, mine.numel()});
}

void all_reduce(const at::Tensor& values, const std::string& group) {
  run("adding the gradient sums of a normalization", values, group, [&](c10d::ProcessGroup& found) {
    std::vector<at::Tensor> tensors{values};
    return found.allreduce(tensors);
  });
}

}  // namespace synchronization

GroupTraffic group_traffic() {
  return {synchronization::collectives, synchronization::bytes};
}

void reset_group_traffic() {
  synchronization::collectives = 0;
  synchronization::bytes = 0;
}

}  // namespace palimpsest::ops
