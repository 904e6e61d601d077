#include "palimpsest/distributed/common/rendezvous.h"

#include "palimpsest/base/printable.h"
#include "palimpsest/distributed/common/message_text.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <torch/version.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace palimpsest::distributed {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kRetry{20};
/// How often a rank that waits for something else looks whether it should give up, in ms.
constexpr int kSlice = 100;
/// How much longer than the timeout a rank that was welcomed waits for rank 0 to say who is missing.
constexpr milliseconds kVerdictGrace{2000};
/// How long rank 0 keeps its store for the others to read that the ranks do not fit.
constexpr milliseconds kVerdictPatience{5000};

/// The lines of a greeting before the identity, and their names in messages.
const char* const kGreetingLines[] = {"the version of palimpsest", "the version of libtorch",
                                      "the number of ranks"};
constexpr int kGreetingSize = std::size(kGreetingLines);

std::string greeting_of(const Launch& launch, const GroupOptions& options) {
  return fmt::format("{}\n{}\n{}\n{}", PALIMPSEST_VERSION, TORCH_VERSION, launch.size, options.identity);
}

/// Returns the number of ranks that a greeting names.
int64_t size_in(const std::string& greeting) {
  std::size_t begin = 0;
  for (int line = 1; line < kGreetingSize; ++line) begin = greeting.find('\n', begin) + 1;
  int64_t size = 0;
  std::from_chars(greeting.data() + begin, greeting.data() + greeting.size(), size);
  return std::min<int64_t>(size, kMostRanks);
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

/// Returns why no connection to one of the addresses could be made until `end`, or nothing.
std::optional<std::string> try_to_connect(const addrinfo& address, Clock::time_point end,
                                          const std::function<bool()>& gives_up) {
  const auto reason = [](int code) { return std::generic_category().message(code); };
  const int connection =
      ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol);
  if (connection < 0) return reason(errno);
  int status = ::connect(connection, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (status == EINPROGRESS) {
    // A machine that is off does not answer: the system's own limit is two minutes.
    status = ETIMEDOUT;
    pollfd waiting{connection, POLLOUT, 0};
    while (Clock::now() < end && !(gives_up && gives_up())) {
      if (::poll(&waiting, 1, kSlice) <= 0) continue;
      socklen_t length = sizeof status;
      ::getsockopt(connection, SOL_SOCKET, SO_ERROR, &status, &length);
      break;
    }
  }
  ::close(connection);
  if (status == 0) return std::nullopt;
  return reason(status);
}

/// Waits until something listens at address:port, and returns the last failure if that does not happen.
/// c10d's own client waits a second between two attempts and prints a warning for each.
std::optional<std::string> wait_for_listener(const std::string& address, uint16_t port, Clock::time_point end,
                                             const std::function<bool()>& gives_up) {
  std::optional<std::string> failure;
  do {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int status = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found)) {
      failure = gai_strerror(status);
    } else {
      const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
      for (const addrinfo* one = found; one != nullptr; one = one->ai_next)
        if (failure = try_to_connect(*one, end, gives_up); !failure) return std::nullopt;
    }
    std::this_thread::sleep_for(kRetry);
  } while (Clock::now() < end && !(gives_up && gives_up()));
  return failure;
}

/// Returns the text before the first blank and the text after it.
std::pair<std::string, std::string> split(const std::string& text) {
  const auto blank = text.find(' ');
  return {text.substr(0, blank), text.substr(blank + 1)};
}

/// Returns how many groups of this name the process has made. Their keys in a launcher's store must differ.
int next_generation(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, int> generations;
  const std::lock_guard lock(mutex);
  return generations[name]++;
}

/// One rank on its way into the group.
///
/// A launcher's store outlives a round of its processes, and a rank may meet the store of an earlier group on
/// the port: what others left there must not be taken for an answer. So each process takes a ticket that none
/// has had before, and rank 0 tells it the round. (The number of restarts would not do: torchrun's agents
/// count their own.)
///   round             the number of the last round; rank 0 takes it
///   tickets           how many processes have come
///   welcome/TICKET    the round; rank 0 writes it for each ticket
///   refused           the verdict of the last round that was refused
///   ROUND/entered     how many processes were welcomed and have entered
///   ROUND/entry/I     "<rank> <greeting>" of the I-th of them
///   ROUND/verdict     "ok" and the entries that make the group, or the kind of the error, 'u' or 'p', and its
///                     text
///   ROUND/read        how many have read the verdict
/// All later keys of the group belong to the round, too.
class Arrival {
 public:
  Arrival(const Launch& launch, const GroupOptions& options)
      : launch_(launch),
        options_(options),
        serves_(launch.rank == 0 && !launch.agent_store),
        end_(Clock::now() + options.timeout),
        prefix_(
            fmt::format("palimpsest/{}/{}/{}/", launch.run_id, options.name, next_generation(options.name))),
        greeting_(greeting_of(launch, options)) {}

  Meeting meet() {
    while (true) {
      connect();
      try {
        if (launch_.rank == 0)
          judge();
        else
          introduce();
        obey_verdict();
        return meeting();
      } catch (const c10::Error& error) {
        // The store ended. It may have been that of an earlier group on the same port, whose rank 0 was
        // about to leave.
        if (serves_ || time_is_over())
          throw Error(ErrorKind::kPeer, fmt::format("{} {} is gone: {}", me(), owner(),
                                                    reason_of(error.what_without_backtrace())));
        std::this_thread::sleep_for(kRetry);
      }
    }
  }

 private:
  std::string me() const { return fmt::format("[rank {} of {}]", launch_.rank, launch_.size); }
  std::string where() const { return fmt::format("{}:{}", launch_.address, port_); }
  std::string owner() const {
    return launch_.agent_store
               ? fmt::format("the launcher's store at {}", where())
               : fmt::format("rank 0 of {}, which holds the store at {},", launch_.size, where());
  }
  bool time_is_over() const { return Clock::now() >= end_; }
  bool gives_up() const { return options_.gives_up && options_.gives_up(); }
  /// For requests: rank 0 may be busy at the end of the time.
  milliseconds time_left() const {
    return std::max(milliseconds(2000), std::chrono::duration_cast<milliseconds>(end_ - Clock::now()));
  }
  void pause(milliseconds time) {
    std::this_thread::sleep_for(time);
    connection_->set_limit(time_left());
    if (!gives_up_at_ && gives_up()) gives_up_at_ = Clock::now() + kVerdictGrace;
    if (!gives_up_at_) return;
    if (round_)
      conclude(stopped());
    else if (Clock::now() > *gives_up_at_)  // rank 0 would have welcomed this process, and told the others
      refuse(stopped());
  }

  std::string stopped() const {
    return fmt::format("p rank {} of {} was stopped before all ranks had met", launch_.rank, launch_.size);
  }

  /// `gives_up` ends the wait for the connection. After the verdict nobody gives up here, where the others, who wait for
  /// this rank, would not be told.
  c10::intrusive_ptr<BoundedStore> tcp_store(bool is_server, const std::function<bool()>& gives_up = {}) {
    c10d::TCPStoreOptions options;
    options.port = port_;
    options.isServer = is_server;
    options.waitWorkers = false;
    options.timeout = time_left();
    if (is_server && options_.listen_fd >= 0) options.masterListenFd = options_.listen_fd;
    const auto port = std::make_shared<uint16_t>();
    // MASTER_ADDR may be an address that rank 0's machine itself does not reach.
    const std::string address = serves_ && options_.listen_fd < 0 ? "127.0.0.1" : launch_.address;
    auto store = c10::make_intrusive<BoundedStore>(
        [address, options, port]() -> c10::intrusive_ptr<c10d::Store> {
          auto tcp = c10::make_intrusive<c10d::TCPStore>(address, options);
          *port = tcp->getPort();
          return tcp;
        },
        time_left(), gives_up);
    port_ = *port;
    store->setTimeout(options_.timeout);
    return store;
  }

  void connect() {
    store_.reset();
    round_.reset();
    connection_.reset();
    port_ = launch_.port;
    if (!serves_) {
      if (const auto failure = wait_for_listener(launch_.address, port_, end_, options_.gives_up)) {
        if (gives_up()) refuse(stopped());
        throw Error(
            ErrorKind::kPeer,
            fmt::format("{} cannot reach {} at {} within {} s ({}): start rank 0, or look at its error", me(),
                        launch_.agent_store ? "the launcher's store" : "the store of rank 0", where(),
                        seconds(options_.timeout), *failure));
      }
    }
    try {
      connection_ = tcp_store(serves_, options_.gives_up);
    } catch (const c10::Error& error) {
      const std::string why = reason_of(error.what_without_backtrace());
      if (gives_up()) refuse(stopped());
      if (serves_ && why == BoundedStore::kNoAnswer)
        throw Error(ErrorKind::kPeer, fmt::format("{} its own store at {} did not answer within {} s", me(),
                                                  where(), seconds(options_.timeout)));
      if (serves_ && why.find("EADDRINUSE") != why.npos)
        throw Error(
            ErrorKind::kUsage,
            fmt::format("{} cannot listen at {}: the port is in use; set another MASTER_PORT on all ranks, "
                        "or look for a second process with rank 0",
                        me(), where()));
      if (serves_)
        throw Error(ErrorKind::kUsage, fmt::format("{} cannot listen at {}: {}", me(), where(), why));
      throw Error(ErrorKind::kPeer,
                  fmt::format("{} what listens at {} does not answer as the store of {} does within {} s "
                              "({}): MASTER_ADDR and MASTER_PORT must be the same on all ranks, and the port "
                              "free of other programs",
                              me(), where(), launch_.agent_store ? "a launcher" : "rank 0",
                              seconds(options_.timeout), why));
    }
    store_ = c10::make_intrusive<c10d::PrefixStore>(prefix_, connection_);
  }

  static std::string welcome_key(int64_t ticket) { return fmt::format("welcome/{}", ticket); }
  static std::string entry_key(int64_t entry) { return fmt::format("entry/{}", entry); }

  void enter_round(const std::string& number) {
    round_prefix_ = fmt::format("{}{}/", prefix_, number);
    round_ = c10::make_intrusive<c10d::PrefixStore>(round_prefix_, connection_);
    entry_ = round_->add("entered", 1);
    round_->set(entry_key(entry_), fmt::format("{} {}", launch_.rank, greeting_));
  }

  /// Publishes the verdict; the first counts.
  void conclude(const std::string& verdict) { round_->compareSet("verdict", "", verdict); }

  std::string shared_rank(int rank) const {
    return fmt::format("u each process needs a rank of its own: two processes of {} have rank {}",
                       launch_.size, rank);
  }

  std::string absence(const std::map<int, int64_t>& there) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < launch_.size; ++rank)
      if (!there.contains(rank)) ranks.push_back(rank);
    return fmt::format("p {} did not connect to {} within {} s: start {}, or look at {} error",
                       rank_list(ranks, launch_.size), where(), seconds(options_.timeout),
                       ranks.size() == 1 ? "it" : "them", ranks.size() == 1 ? "its" : "their");
  }

  /// Rank 0 tells each process that has come the round.
  void welcome() {
    for (const int64_t last = store_->add("tickets", 0); welcomed_ < last;)
      store_->set(welcome_key(++welcomed_), round_number_);
  }

  /// Rank 0 welcomes each process, and compares it with itself.
  void judge() {
    const int64_t number = store_->add("round", 1);
    round_number_ = std::to_string(number);
    welcomed_ = 0;
    expected_ = launch_.size;
    enter_round(round_number_);
    std::map<int, int64_t> there;  // ranks and their entries
    std::set<int64_t> unread;
    int64_t entered = 0;
    while (!round_->check({"verdict"})) {
      if (store_->add("round", 0) != number) conclude(shared_rank(0));
      welcome();
      for (const int64_t last = round_->add("entered", 0); entered < last;) unread.insert(++entered);
      std::erase_if(unread, [&](int64_t entry) {
        if (!round_->check({entry_key(entry)})) return false;
        const auto [digits, greeting] = split(round_->get_to_str(entry_key(entry)));
        const int rank = rank_in(digits);
        expected_ = std::max(expected_, size_in(greeting));
        if (const auto found = conflict(0, greeting_, rank, greeting))
          conclude("u " + *found);
        else if (!there.emplace(rank, entry).second)
          conclude(shared_rank(rank));
        return true;
      });
      if (static_cast<int>(there.size()) == launch_.size)
        conclude(group_of(there));
      else if (time_is_over())
        conclude(absence(there));
      else
        pause(kRetry);
    }
  }

  static std::string group_of(const std::map<int, int64_t>& there) {
    std::string verdict = "ok";
    for (const auto& [rank, entry] : there) verdict += fmt::format(" {}", entry);
    return verdict + " ";
  }

  /// Returns when rank 0 has welcomed this process and the round has a verdict.
  void introduce() {
    const std::string welcome = welcome_key(store_->add("tickets", 1));
    // At most 1,600 requests per second from all ranks together.
    const milliseconds between = std::clamp(kRetry * launch_.size / 32, kRetry, milliseconds(500));
    std::string number;
    while (true) {
      // A rank 0 that ends may have welcomed this process; the next one does so again.
      if (store_->check({welcome}))
        if (const std::string last = store_->get_to_str(welcome); last != number) enter_round(number = last);
      if (round_ && round_->check({"verdict"})) return;
      if (!round_ && time_is_over()) refuse(silence());
      // Rank 0 knows who is missing, and may have begun a little later. Without it, all should give up now.
      if (Clock::now() > end_ + kVerdictGrace) return conclude(what_is_missing());
      pause(between);
    }
  }

  /// The verdict of a rank other than 0 whose time is over: rank 0 may have begun much later.
  std::string what_is_missing() {
    std::map<int, int64_t> there;
    for (int64_t entry = 1, last = round_->add("entered", 0); entry <= last; ++entry)
      if (round_->check({entry_key(entry)}))
        there.emplace(rank_in(round_->get_to_str(entry_key(entry))), entry);
    return static_cast<int>(there.size()) < launch_.size ? absence(there) : silence();
  }

  static int rank_in(const std::string& entry) {
    int rank = -1;
    std::from_chars(entry.data(), entry.data() + entry.size(), rank);
    return rank;
  }

  /// Rank 0 has not said whether there is a group.
  std::string silence() {
    std::string text = fmt::format(
        "p rank 0 of {} did not answer rank {} over the store at {} within {} s: it was not started, it "
        "hangs, or another process has rank {}",
        launch_.size, launch_.rank, where(), seconds(options_.timeout), launch_.rank);
    if (store_->check({"refused"}))
      text += "; the processes that met before were refused: " + store_->get_to_str("refused");
    return text;
  }

  void obey_verdict() {
    const std::string verdict = round_->get_to_str("verdict");
    round_->add("read", 1);
    if (verdict.starts_with("ok ")) {
      if (verdict.find(fmt::format(" {} ", entry_)) != verdict.npos) return;
      refuse(shared_rank(launch_.rank));  // the group was complete without this process
    }
    if (launch_.rank == 0) {
      store_->set("refused", verdict.substr(2));
      await_readers();
    }
    refuse(verdict);
  }

  [[noreturn]] void refuse(const std::string& verdict) const {
    throw Error(verdict[0] == 'u' ? ErrorKind::kUsage : ErrorKind::kPeer,
                "[distributed] " + verdict.substr(2));
  }

  /// All ranks should read the verdict, even those that start a little later.
  void await_readers() {
    const auto end = Clock::now() + kVerdictPatience;
    while (Clock::now() < end) {
      welcome();
      const int64_t entered = round_->add("entered", 0);
      if (entered >= expected_ && round_->add("read", 0) >= entered) return;
      std::this_thread::sleep_for(kRetry);
    }
  }

  Meeting meeting() {
    Meeting meeting;
    if (serves_) {
      meeting.server = connection_;
      meeting.connection = tcp_store(/*is_server=*/false);
    } else {
      meeting.connection = connection_;
    }
    meeting.watcher_connection = tcp_store(/*is_server=*/false);
    for (const auto& connection : {meeting.connection, meeting.watcher_connection})
      connection->set_limit(options_.timeout);
    meeting.store = c10::make_intrusive<c10d::PrefixStore>(round_prefix_, meeting.connection);
    meeting.watcher_store = c10::make_intrusive<c10d::PrefixStore>(round_prefix_, meeting.watcher_connection);
    meeting.port = port_;
    meeting.store_owner = owner();
    return meeting;
  }

  const Launch& launch_;
  const GroupOptions& options_;
  const bool serves_;
  const Clock::time_point end_;
  const std::string prefix_, greeting_;
  uint16_t port_ = 0;
  c10::intrusive_ptr<BoundedStore> connection_;
  std::string round_prefix_, round_number_;
  StorePtr store_, round_;  // the keys of this name of a group, and those of the round
  int64_t entry_ = 0;       // of this process in the round
  std::optional<Clock::time_point> gives_up_at_;
  int64_t welcomed_ = 0;  // rank 0: the last ticket
  int64_t expected_ = 0;  // rank 0: the processes, as the one counts that believes in the most
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
