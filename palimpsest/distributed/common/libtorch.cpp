#include "palimpsest/distributed/common/libtorch.h"

// libtorch contains Gloo and its own headers of Gloo's process group, which show these classes under this
// macro.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>

#include <algorithm>
#include <cstdlib>
#include <unordered_map>
#include <utility>

namespace palimpsest::distributed {
namespace {

/// Keeps the buckets of the constructor. c10d::Reducer makes new ones after the first backward, in the
/// order in which gradients became ready. Then the first step of a resumed run would have other buckets
/// than the same step of an unbroken run; with more than two ranks Gloo's ring adds in an order that
/// depends on the place in the bucket.
class ReducerWithFixedBuckets : public c10d::Reducer {
 public:
  template <class... Arguments>
  explicit ReducerWithFixedBuckets(Arguments&&... arguments)
      : c10d::Reducer(std::forward<Arguments>(arguments)...) {
    has_rebuilt_bucket_ = true;
  }
};

std::vector<std::string> gloo_interfaces() {
  const char* listed = std::getenv("GLOO_SOCKET_IFNAME");  // NOLINT(concurrency-mt-unsafe)
  std::vector<std::string> names;
  for (std::string rest = listed ? listed : ""; !rest.empty();) {
    const auto comma = std::min(rest.find(','), rest.size());
    if (comma > 0) names.push_back(rest.substr(0, comma));
    rest.erase(0, comma + 1);
  }
  return names;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout, bool loopback) {
  using c10d::ProcessGroupGloo;
  auto options = ProcessGroupGloo::Options::create(timeout);
  if (const auto interfaces = gloo_interfaces(); !interfaces.empty())
    for (const auto& name : interfaces)
      options->devices.push_back(ProcessGroupGloo::createDeviceForInterface(name));
  else if (loopback)
    options->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  else
    options->devices.push_back(ProcessGroupGloo::createDefaultDevice());
  return c10::make_intrusive<ProcessGroupGloo>(store, rank, size, std::move(options));
}

Buckets assign_buckets(const std::vector<at::Tensor>& parameters, const ReducerOptions& options) {
  std::vector<at::Tensor> last_first(parameters.rbegin(), parameters.rend());
  std::vector<int64_t> indices;
  for (auto i = static_cast<int64_t>(parameters.size()); i-- > 0;) indices.push_back(i);
  return std::get<0>(c10d::compute_bucket_assignment_by_size(
      last_first,
      {static_cast<std::size_t>(options.first_bucket_bytes), static_cast<std::size_t>(options.bucket_bytes)},
      std::vector<bool>(parameters.size(), false), indices));
}

std::shared_ptr<c10d::Reducer> make_reducer(const std::vector<at::Tensor>& parameters,
                                            const std::vector<std::string>& names, const Buckets& buckets,
                                            const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                            const ReducerOptions& options) {
  std::unordered_map<std::size_t, std::string> names_by_index;
  for (std::size_t i = 0; i < names.size(); ++i) names_by_index[i] = names[i];
  const auto reducer = std::make_shared<ReducerWithFixedBuckets>(
      parameters, buckets, group, /*expect_sparse_gradients=*/std::vector<bool>(parameters.size(), false),
      options.bucket_bytes, options.find_unused_parameters, /*gradient_as_bucket_view=*/true,
      std::move(names_by_index), options.first_bucket_bytes, /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
  // The search for unused parameters tells the logger that the graph has changed, without asking whether
  // there is one.
  const auto logger = std::make_shared<c10d::Logger>(reducer);
  reducer->set_logger(logger);
  return {logger, reducer.get()};
}

}  // namespace palimpsest::distributed
