#pragma once

#include <c10/core/Device.h>

#include <string>

namespace palimpsest::train {

/// Reads "cpu", "cuda" (the first GPU) or "cuda:N" as a device with its index. Throws Error(kUsage) with the
/// way out for any other text, for a GPU if this build has no kernels for one, and for a GPU that libtorch
/// does not find. If a backend of libtorch's PrivateUse1 is loaded, its devices, such as "privateuseone:0",
/// are read, too: libtorch's own layers train there, ours need a kernel.
c10::Device parse_device(const std::string& text);

/// The same on a machine with `gpus` GPUs, in a build with or without kernels for them.
c10::Device parse_device(const std::string& text, bool has_kernels, int gpus);

/// Returns the device of process number `local_rank` of a machine in a run of several processes, as such a
/// text: for "cuda" the GPU of this number, or the only GPU that the process sees (srun --gpus-per-task);
/// "cpu" stays. Throws Error(kUsage) as parse_device does, and for a GPU by its number, which all processes
/// would share.
std::string device_of_process(const std::string& text, int local_rank);

}  // namespace palimpsest::train
