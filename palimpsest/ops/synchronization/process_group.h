#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

/// Collective operations of a process group, found by the name under which it is registered with c10d: in C++
/// by c10d::register_process_group (distributed/process_group.h does it), in Python by torch.distributed, as
/// group.group_name. All ranks must make the same calls in the same order. On a GPU the host does not wait.
/// Errors: c10::Error "[abn] requirement, got value" for an unknown name, and "[abn] operation over the group
/// '...' failed: reason" if the backend gives up (a rank is gone, the time is over).
namespace palimpsest::ops::synchronization {

/// Returns the number of ranks.
int64_t size(const std::string& group);

/// Returns the (n) values of every rank as (ranks, n), in the order of the ranks. `mine`: contiguous.
at::Tensor all_gather(const at::Tensor& mine, const std::string& group);

/// Replaces the contiguous values of every rank by their sum, with the same bytes on all ranks.
void all_reduce(const at::Tensor& values, const std::string& group);

}  // namespace palimpsest::ops::synchronization
