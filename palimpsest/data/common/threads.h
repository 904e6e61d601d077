#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace palimpsest::data {

/// Starts `count` threads that run `work`, which must not throw. Their destructors wait for them. If the
/// system starts fewer, calls `stop`, after which `work` must return, waits for those that run, and throws
/// Error(kMemory): "the loader cannot start 300 threads: Resource temporarily unavailable; give fewer
/// (--workers), or raise 'ulimit -u'". `who` and `flag` are for this message.
std::vector<std::jthread> start_threads(int64_t count, const std::string& who, const std::string& flag,
                                        const std::function<void()>& work, const std::function<void()>& stop);

}  // namespace palimpsest::data
