#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/// All that differs between releases of libtorch, and what Gloo's and NCCL's headers are needed for.
namespace palimpsest::distributed {

/// Returns Gloo's transport for tensors on the CPU. `loopback`: all ranks are on this machine. Otherwise Gloo
/// uses the interfaces that GLOO_SOCKET_IFNAME lists, or the address of the host's name.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout, bool loopback);

/// Returns whether this build has NCCL and the machine a GPU.
bool has_nccl();
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout);

/// A piece of the gradients, and the parameters in it as indices into the list of parameters.
using Buckets = std::vector<std::vector<std::size_t>>;

struct ReducerOptions {
  int64_t first_bucket_bytes;
  int64_t bucket_bytes;
  bool find_unused_parameters;
};

/// Returns the buckets of `parameters`, those of the last parameters first.
Buckets assign_buckets(const std::vector<at::Tensor>& parameters, const ReducerOptions& options);

/// Returns a reducer whose buckets stay as they are. Gradients are views of the buckets.
std::shared_ptr<c10d::Reducer> make_reducer(const std::vector<at::Tensor>& parameters,
                                            const std::vector<std::string>& names, const Buckets& buckets,
                                            const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                            const ReducerOptions& options);

}  // namespace palimpsest::distributed
