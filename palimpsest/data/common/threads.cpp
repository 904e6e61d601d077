#include "palimpsest/data/common/threads.h"

#include "palimpsest/base/error.h"

#include <system_error>

namespace palimpsest::data {

std::vector<std::jthread> start_threads(int64_t count, const std::string& who, const std::string& flag,
                                        const std::function<void()>& work,
                                        const std::function<void()>& stop) {
  std::vector<std::jthread> threads;
  try {
    threads.reserve(count);
    for (int64_t i = 0; i < count; ++i) threads.emplace_back(work);
  } catch (const std::system_error& error) {
    stop();
    threads.clear();  // waits for them: nothing of the caller is in use when it hears of the error
    throw Error(ErrorKind::kMemory, who + " cannot start " + std::to_string(count) +
                                        " threads: " + error.code().message() + "; give fewer (" + flag +
                                        "), or raise 'ulimit -u'");
  }
  return threads;
}

}  // namespace palimpsest::data
