#include "palimpsest/distributed/common/rendezvous.h"

#include "palimpsest/base/printable.h"
#include "palimpsest/distributed/common/text_difference.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <sys/socket.h>
#include <torch/version.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace palimpsest::distributed {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kRetry{20};
/// How long rank 0 keeps its store for the others to read that the ranks do not fit.
constexpr milliseconds kVerdictPatience{3000};

/// The lines of a greeting before the identity, and their names in messages.
const char* const kGreetingLines[] = {"the version of palimpsest", "the version of libtorch",
                                      "the number of ranks"};
constexpr int kGreetingSize = std::size(kGreetingLines);

std::string greeting_of(const Launch& launch, const GroupOptions& options) {
  return fmt::format("{}\n{}\n{}\n{}", PALIMPSEST_VERSION, TORCH_VERSION, launch.size, options.identity);
}

/// Returns what differs between the greetings of two ranks, as one line; nothing if they are equal.
std::optional<std::string> conflict(int left, const std::string& left_greeting, int right,
                                    const std::string& right_greeting) {
  const auto difference = first_difference(left_greeting, right_greeting);
  if (!difference) return std::nullopt;
  const std::string what =
      difference->line <= kGreetingSize
          ? std::string(kGreetingLines[difference->line - 1])
          : fmt::format("line {} of the configuration", difference->line - kGreetingSize);
  return fmt::format(
      "all ranks must run the same program with the same configuration: rank {} and rank {} differ "
      "in {}: '{}' and '{}'",
      left, right, what, printable(shortened(difference->left, 300)),
      printable(shortened(difference->right, 300)));
}

double seconds(milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

std::string first_line_of(const std::string& text) {
  return printable(text.substr(0, text.find('\n')));
}

/// Waits until something listens at address:port, and returns the last failure if that does not happen.
/// c10d's own client waits a second between two attempts and prints a warning for each.
std::optional<std::string> wait_for_listener(const std::string& address, uint16_t port,
                                             Clock::time_point end) {
  std::string failure = "no attempt was made";
  do {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int status = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found)) {
      failure = gai_strerror(status);
    } else {
      const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
      for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
        const int connection = ::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol);
        const bool connected = connection >= 0 && ::connect(connection, one->ai_addr, one->ai_addrlen) == 0;
        if (!connected) failure = std::generic_category().message(errno);
        if (connection >= 0) ::close(connection);
        if (connected) return std::nullopt;
      }
    }
    std::this_thread::sleep_for(kRetry);
  } while (Clock::now() < end);
  return failure;
}

/// Returns how many groups of this name the process has made. Their keys in a launcher's store must differ.
int next_generation(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, int> generations;
  const std::lock_guard lock(mutex);
  return generations[name]++;
}

/// One rank on its way into the group.
class Arrival {
 public:
  Arrival(const Launch& launch, const GroupOptions& options)
      : launch_(launch),
        options_(options),
        serves_(launch.rank == 0 && !launch.agent_store),
        end_(Clock::now() + options.timeout),
        prefix_(fmt::format("palimpsest/{}/{}/{}/{}/", launch.run_id, launch.restart, options.name,
                            next_generation(options.name))),
        greeting_(greeting_of(launch, options)) {}

  Meeting meet() {
    while (true) {
      connect();
      try {
        greet();
        if (launch_.rank == 0) judge();
        await_verdict();
        return meeting();
      } catch (const c10::Error& error) {
        // The store ended. It may have been that of an earlier group on the same port, whose rank 0 was
        // about to leave.
        if (serves_ || Clock::now() >= end_)
          throw Error(ErrorKind::kPeer, fmt::format("{} the store at {} ended the connection: {}", me(),
                                                    where(), first_line_of(error.what_without_backtrace())));
        std::this_thread::sleep_for(kRetry);
      }
    }
  }

 private:
  std::string me() const { return fmt::format("[rank {} of {}]", launch_.rank, launch_.size); }
  std::string where() const { return fmt::format("{}:{}", launch_.address, port_); }
  bool time_is_over() const { return Clock::now() >= end_; }

  c10::intrusive_ptr<c10d::TCPStore> tcp_store(bool is_server) const {
    c10d::TCPStoreOptions options;
    options.port = port_;
    options.isServer = is_server;
    options.waitWorkers = false;
    options.timeout = options_.timeout;
    if (is_server && options_.listen_fd >= 0) options.masterListenFd = options_.listen_fd;
    return c10::make_intrusive<c10d::TCPStore>(launch_.address, options);
  }

  void connect() {
    store_.reset();
    tcp_.reset();
    port_ = launch_.port;
    if (!serves_) {
      if (const auto failure = wait_for_listener(launch_.address, port_, end_))
        throw Error(
            ErrorKind::kPeer,
            fmt::format("{} cannot reach {} at {} within {} s ({}): start rank 0, or look at its error", me(),
                        launch_.agent_store ? "the launcher's store" : "the store of rank 0", where(),
                        seconds(options_.timeout), failure->c_str()));
    }
    try {
      tcp_ = tcp_store(serves_);
    } catch (const c10::Error& error) {
      throw Error(serves_ ? ErrorKind::kUsage : ErrorKind::kPeer,
                  fmt::format("{} cannot {} {}: {}", me(), serves_ ? "listen at" : "connect to", where(),
                              first_line_of(error.what_without_backtrace())));
    }
    port_ = tcp_->getPort();
    store_ = c10::make_intrusive<c10d::PrefixStore>(prefix_, tcp_);
  }

  void greet() {
    if (store_->add(fmt::format("claim/{}", launch_.rank), 1) > 1) {
      conclude(fmt::format("u each process needs a rank of its own: two processes of {} have rank {}",
                           launch_.size, launch_.rank));
    } else {
      store_->set(hello(launch_.rank), greeting_);
    }
  }

  static std::string hello(int rank) { return fmt::format("hello/{}", rank); }

  /// Publishes the verdict, "" or the kind of the error, 'u' or 'p', and its text. The first counts.
  void conclude(const std::string& verdict) {
    store_->compareSet("verdict", "", verdict.empty() ? "ok" : verdict);
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < launch_.size; ++rank)
      if (!store_->check({hello(rank)})) ranks.push_back(rank);
    return ranks;
  }

  std::string absence(const std::vector<int>& ranks) const {
    return fmt::format("p {} {} of {} did not connect to {} within {} s: start {}, or look at {} error",
                       ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "), launch_.size, where(),
                       seconds(options_.timeout), ranks.size() == 1 ? "it" : "them",
                       ranks.size() == 1 ? "its" : "their");
  }

  /// Rank 0 compares each rank with itself as soon as that rank is there.
  void judge() {
    std::vector<int> awaited;
    for (int rank = 1; rank < launch_.size; ++rank) awaited.push_back(rank);
    while (!store_->check({"verdict"})) {
      std::optional<std::string> found;
      std::erase_if(awaited, [&](int rank) {
        if (found || !store_->check({hello(rank)})) return false;
        found = conflict(0, greeting_, rank, store_->get_to_str(hello(rank)));
        return true;
      });
      if (found)
        conclude("u " + *found);
      else if (awaited.empty())
        conclude("");
      else if (time_is_over())
        conclude(absence(awaited));
      else
        std::this_thread::sleep_for(kRetry);
    }
  }

  void await_verdict() {
    // At most 1,600 requests per second from all ranks together.
    const milliseconds pause = std::clamp(kRetry * launch_.size / 32, kRetry, milliseconds(500));
    while (!store_->check({"verdict"})) {
      if (time_is_over()) {
        store_->add("read", 1);
        refuse(absence(missing()));
      }
      std::this_thread::sleep_for(pause);
    }
    const std::string verdict = store_->get_to_str("verdict");
    store_->add("read", 1);
    if (verdict == "ok") return;
    if (serves_) await_readers(/*some_are_missing=*/verdict[0] == 'p');
    refuse(verdict);
  }

  [[noreturn]] void refuse(const std::string& verdict) const {
    throw Error(verdict[0] == 'u' ? ErrorKind::kUsage : ErrorKind::kPeer,
                "[distributed] " + verdict.substr(2));
  }

  /// All ranks should read that two of them do not fit, even those that start a little later.
  void await_readers(bool some_are_missing) {
    const auto readers = launch_.size - static_cast<int64_t>(some_are_missing ? missing().size() : 0);
    const auto end = Clock::now() + kVerdictPatience;
    while (store_->add("read", 0) < readers && Clock::now() < end) std::this_thread::sleep_for(kRetry);
  }

  Meeting meeting() {
    Meeting meeting;
    meeting.store = store_;
    meeting.watcher_store = c10::make_intrusive<c10d::PrefixStore>(prefix_, tcp_store(/*is_server=*/false));
    meeting.holds_store = serves_;
    meeting.port = port_;
    meeting.store_owner = launch_.agent_store ? fmt::format("the launcher's store at {}", where())
                                              : fmt::format("rank 0 of {}, which holds the store at {},",
                                                            launch_.size, where());
    return meeting;
  }

  const Launch& launch_;
  const GroupOptions& options_;
  const bool serves_;
  const Clock::time_point end_;
  const std::string prefix_, greeting_;
  uint16_t port_ = 0;
  c10::intrusive_ptr<c10d::TCPStore> tcp_;
  StorePtr store_;
};

}  // namespace

Meeting meet(const Launch& launch, const GroupOptions& options) {
  return Arrival(launch, options).meet();
}

Meeting meet_nobody() {
  Meeting meeting;
  meeting.store = c10::make_intrusive<c10d::HashStore>();
  return meeting;
}

}  // namespace palimpsest::distributed
