#include "palimpsest/distributed/common/watcher.h"

#include "palimpsest/distributed/common/message_text.h"

#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace palimpsest::distributed {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kShortestInterval{200};
/// How long rank 0 waits for the last request of ranks that have left: they wait 2 s for each other at most.
constexpr milliseconds kDonePatience{4000};
constexpr int kAnswerStep = 20;  // ms between two looks for answers

/// The server answers about 10^5 requests per second: 300 ranks per second leave it idle.
milliseconds interval_for(int size) {
  return std::max(kShortestInterval, milliseconds(size * 10 / 3));
}

/// How long a rank waits for others to read something, or to answer it. One that lives does so within an
/// interval of its watcher; the rest is room for a busy machine.
milliseconds patience_for(int size) {
  return interval_for(size) + milliseconds(1300);
}

}  // namespace

Watcher::Watcher(c10::intrusive_ptr<BoundedStore> connection, c10::intrusive_ptr<c10d::Store> store,
                 Options options)
    : connection_(std::move(connection)),
      store_(std::move(store)),
      options_(std::move(options)),
      interval_(interval_for(options_.size)),
      patience_(patience_for(options_.size)) {
  thread_ = std::thread([this] { run(); });
}

Watcher::~Watcher() {
  stop();
}

void Watcher::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watcher::begin(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (fault_) throw Error(*fault_);
  ++begun_;
  last_ = what;
}

int64_t Watcher::begun() const {
  const std::lock_guard lock(mutex_);
  return begun_;
}

int64_t Watcher::add(const std::string& what, End end) {
  std::optional<Error> fault;
  {
    const std::lock_guard lock(mutex_);
    if (!fault_) {
      waiting_.emplace(++next_id_, Waiting{what, std::move(end)});
      return next_id_;
    }
    fault = fault_;
  }
  end(std::make_exception_ptr(*fault));
  return 0;
}

void Watcher::remove(int64_t id) {
  Waiting removed;  // dies after the lock: it may own what waits
  const std::lock_guard lock(mutex_);
  if (const auto found = waiting_.find(id); found != waiting_.end()) {
    removed = std::move(found->second);
    waiting_.erase(found);
  }
}

std::optional<Error> Watcher::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

void Watcher::at_fault(std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  at_fault_ = std::move(action);
}

void Watcher::transport_failed(const std::string& what, const std::string& message,
                               const std::string& advice) {
  std::unique_lock lock(mutex_);
  const auto over = [&] { return fault_ || stopping_ || (leaving_ && store_gone_); };
  if (over()) return;
  if (!broken_) broken_ = Broken{what, message, advice};
  changed_.notify_all();
  // The thread of the watcher finds out who is missing. It needs a round of requests and a roll call.
  changed_.wait_for(lock, kStorePatience + 2 * patience_,
                    [&] { return over() || concluding_ || store_gone_; });
  if (!over() && !concluding_ && !store_gone_) {
    lock.unlock();
    connection_->give_up();  // its request ends, and it reports that the store is gone
    lock.lock();
  }
  changed_.wait(lock, over);
}

void Watcher::run() {
  c10::setThreadName("pal_watcher");
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const auto must_diagnose = [&] { return broken_ && !fault_ && !concluding_ && !store_gone_; };
    changed_.wait_for(lock, interval_, [&] { return stopping_ || must_diagnose(); });
    if (stopping_) return;
    if (store_gone_) continue;
    const auto broken = must_diagnose() ? broken_ : std::nullopt;
    lock.unlock();
    try {
      const std::lock_guard exchange(store_mutex_);
      if (broken)
        diagnose(*broken);
      else
        poll();
    } catch (const std::exception& error) {
      store_is_gone(error.what());
    }
    lock.lock();
  }
}

void Watcher::note_that_store_is_gone() {
  {
    const std::lock_guard lock(mutex_);
    store_gone_ = true;
  }
  changed_.notify_all();
}

bool Watcher::store_is_known_gone() const {
  const std::lock_guard lock(mutex_);
  return store_gone_;
}

bool Watcher::store_has(const std::string& key) {
  return store_->check({key});
}

/// Reads what others have published since the last time, and answers a roll call.
void Watcher::poll() {
  const int64_t notice = store_->add("notice", 0);
  if (notice == last_notice_) return;
  last_notice_ = notice;
  std::string answer;
  {
    const std::lock_guard lock(mutex_);
    answer = fmt::format("{}|{}|{}|{}", notice, begun_, waiting_.empty() ? 0 : 1, last_);
  }
  store_->set(fmt::format("here/{}", options_.rank), answer);
  if (store_has("fault")) adopt(store_->get_to_str("fault"), /*own=*/false);
}

Watcher::RollCall Watcher::call_roll(milliseconds patience) {
  const int64_t call = store_->add("notice", 1);
  const auto end = Clock::now() + patience;
  RollCall roll;
  std::vector<int> missing;
  for (int rank = 0; rank < options_.size; ++rank)
    if (rank != options_.rank) missing.push_back(rank);
  while (true) {
    poll();  // another rank may call the roll too, or may have found the fault
    if (fault()) return roll;
    std::erase_if(missing, [&](int rank) {
      if (store_has(fmt::format("left/{}", rank))) {
        roll.left.push_back(rank);
        return true;
      }
      const std::string key = fmt::format("here/{}", rank);
      if (!store_has(key)) return false;
      const std::string answer = store_->get_to_str(key);
      int64_t heard = 0, begun = 0, waits = 0;
      const char* at = answer.data();
      const char* const end_of_answer = at + answer.size();
      for (int64_t* const field : {&heard, &begun, &waits}) {
        at = std::from_chars(at, end_of_answer, *field).ptr;
        if (at != end_of_answer) ++at;  // the bar
      }
      if (heard < call) return false;
      roll.answers[rank] = {begun, waits != 0, std::string(at, end_of_answer)};
      return true;
    });
    if (missing.empty() || Clock::now() >= end) break;
    std::this_thread::sleep_for(milliseconds(kAnswerStep));
  }
  roll.gone = missing;
  const std::lock_guard lock(gone_mutex_);
  gone_.insert(missing.begin(), missing.end());
  return roll;
}

std::string Watcher::description(const Broken& broken, const RollCall& roll) const {
  const int size = options_.size;
  if (!roll.gone.empty())
    return fmt::format("{} failed: {} {} gone (killed, stopped, or its machine is unreachable)", broken.what,
                       rank_list(roll.gone, size), roll.gone.size() == 1 ? "is" : "are");
  if (!roll.left.empty())
    return fmt::format("{} failed: {} {} left the group", broken.what, rank_list(roll.left, size),
                       roll.left.size() == 1 ? "has" : "have");
  const int64_t begun = this->begun();
  std::vector<int> behind;
  std::string
      elsewhere;  // ranks that are as far, but in another collective: the order of their calls differs
  for (const auto& [rank, answer] : roll.answers)
    if (answer.begun < begun)
      behind.push_back(rank);
    else if (elsewhere.empty() && answer.last != broken.what)
      elsewhere = fmt::format(", but rank {} has begun {}", rank, answer.last);
  const std::string advice = broken.advice.empty() ? "" : "; " + broken.advice;
  const bool timed_out = broken.message.find("imed out") != std::string::npos ||
                         broken.message.find("imeout") != std::string::npos;
  if (!timed_out || !broken.advice.empty())  // Gloo's connections say so after one attempt, too
    return fmt::format("{} failed on {}, and all ranks live{}: {}{}", broken.what,
                       rank_list({options_.rank}, size), elsewhere, reason_of(broken.message), advice);
  const double seconds = std::chrono::duration<double>(options_.timeout).count();
  if (behind.empty())
    return fmt::format(
        "{} did not end within {} s, and all ranks live{}", broken.what, seconds,
        elsewhere.empty() ? " and have begun it: a link between two of them may be cut" : elsewhere);
  const auto& [first_begun, waits, last] = roll.answers.at(behind[0]);
  if (last == broken.what && waits)
    return fmt::format(
        "{} did not end within {} s: {} live{}, in an earlier operation of this name; a link between two "
        "ranks may be cut",
        broken.what, seconds, rank_list(behind, size), behind.size() == 1 ? "s" : "");
  return fmt::format(
      "{} did not end within {} s: {} live{} but {} not reached it (last operation of rank {}: {})",
      broken.what, seconds, rank_list(behind, size), behind.size() == 1 ? "s" : "",
      behind.size() == 1 ? "has" : "have", behind[0], last.empty() ? "none" : last);
}

void Watcher::diagnose(const Broken& broken) {
  poll();  // a rank that fails publishes why before its connections close
  if (fault()) return;
  const RollCall roll = call_roll(patience_);
  if (fault()) return;
  const std::string mine =
      fmt::format("{}|{}", static_cast<int>(ErrorKind::kPeer), description(broken, roll));
  const std::string first = store_->compareSet("fault", "", mine);
  store_->add("notice", 1);
  adopt(first, /*own=*/false);
}

void Watcher::adopt(const std::string& encoded, bool own) {
  int kind = static_cast<int>(ErrorKind::kPeer);
  const char* end = encoded.data() + encoded.size();
  const auto read = std::from_chars(encoded.data(), end, kind);
  const Error error(static_cast<ErrorKind>(kind), read.ptr == end ? encoded : std::string(read.ptr + 1));
  store_->set(fmt::format("seen/{}", options_.rank), "1");
  // The handler may end the process, and the store with it.
  if (options_.holds_store && options_.on_fault && !own) await_readers(patience_);
  conclude(error, own);
}

void Watcher::store_is_gone(const std::string& why) {
  std::string what;
  {
    const std::lock_guard lock(mutex_);
    store_gone_ = true;
    changed_.notify_all();
    if (leaving_ || stopping_ || fault_) return;
    if (broken_)
      what = broken_->what + " failed: ";
    else if (!waiting_.empty())
      what = waiting_.begin()->second.what + " failed: ";
  }
  conclude(
      Error(ErrorKind::kPeer, fmt::format("{}{} is gone ({})", what, options_.store_owner, reason_of(why))),
      /*own=*/false);
}

void Watcher::conclude(const Error& error, bool own) {
  std::function<void()> at_fault;
  bool report = false;
  {
    const std::lock_guard lock(mutex_);
    if (fault_ || concluding_) return;
    concluding_ = true;
    report = !own && !leaving_ && options_.on_fault;
    at_fault = at_fault_;
  }
  if (report) options_.on_fault(error);
  if (at_fault) at_fault();
  std::map<int64_t, Waiting> waiting;
  {
    const std::lock_guard lock(mutex_);
    fault_ = error;
    waiting.swap(waiting_);
  }
  const std::exception_ptr pointer = std::make_exception_ptr(error);
  for (const auto& [id, one] : waiting) one.end(pointer);
  changed_.notify_all();
}

void Watcher::publish(const std::string& message, ErrorKind kind) noexcept {
  const std::string text =
      fmt::format("rank {} of {}: {}", options_.rank, options_.size, one_line_of(message));
  if (fault()) return;
  connection_->shorten_limit(kStorePatience);
  try {
    const std::lock_guard exchange(store_mutex_);
    if (fault()) return;
    const std::string first =
        store_->compareSet("fault", "", fmt::format("{}|{}", static_cast<int>(kind), text));
    store_->add("notice", 1);
    adopt(first, /*own=*/true);
    if (options_.holds_store) await_readers(patience_);
  } catch (const std::exception&) {
    conclude(Error(kind, text), /*own=*/true);
  }
}

void Watcher::erase_with(std::set<int>& others, std::initializer_list<const char*> keys) {
  std::erase_if(others, [&](int rank) {
    return std::any_of(keys.begin(), keys.end(),
                       [&](const char* key) { return store_has(fmt::format("{}/{}", key, rank)); });
  });
}

std::set<int> Watcher::others_alive() const {
  const std::lock_guard lock(gone_mutex_);
  std::set<int> others;
  for (int rank = 0; rank < options_.size; ++rank)
    if (rank != options_.rank && !gone_.contains(rank)) others.insert(rank);
  return others;
}

/// Returns when the others have read the fault. The caller holds store_mutex_.
void Watcher::await_readers(milliseconds limit) {
  const auto end = Clock::now() + limit;
  std::set<int> others = others_alive();
  while (true) {
    erase_with(others, {"seen", "left"});
    if (others.empty() || Clock::now() >= end) return;
    std::this_thread::sleep_for(milliseconds(kAnswerStep / 2));
  }
}

void Watcher::leave() noexcept {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  changed_.notify_all();
  // The process that holds the store may hang, or be out of reach: then nobody is told.
  connection_->shorten_limit(kStorePatience);
  if (store_is_known_gone()) return;
  try {
    const std::lock_guard exchange(store_mutex_);
    store_->set(fmt::format("left/{}", options_.rank), "1");
    store_->add("notice", 1);
  } catch (const std::exception&) {
    note_that_store_is_gone();  // nobody is there to be told
  }
}

void Watcher::await_farewells(milliseconds limit) noexcept {
  if (store_is_known_gone()) return;
  const auto end = Clock::now() + limit;
  std::set<int> others = others_alive();
  try {
    while (!fault()) {
      {
        const std::lock_guard exchange(store_mutex_);
        erase_with(others, {"left"});
      }
      if (others.empty() || Clock::now() >= end) return;
      std::this_thread::sleep_for(milliseconds(kAnswerStep / 4));
    }
  } catch (const std::exception&) {
    note_that_store_is_gone();  // there is nobody to wait for
  }
}

void Watcher::finish(milliseconds limit) noexcept {
  try {
    if (!options_.holds_store) {
      stop();
      if (store_is_known_gone()) return;
      store_->set(fmt::format("done/{}", options_.rank), "1");
      return;
    }
    const auto end = Clock::now() + limit;
    auto next_roll = Clock::now() + milliseconds(1000);
    std::set<int> others = others_alive();
    while (!others.empty() && !fault() && Clock::now() < end) {
      {
        const std::lock_guard exchange(store_mutex_);
        erase_with(others, {"left"});
        if (!others.empty() && Clock::now() >= next_roll) {
          for (const int rank : call_roll(patience_).gone) others.erase(rank);
          next_roll = Clock::now() + milliseconds(2000);
        }
      }
      if (!others.empty()) std::this_thread::sleep_for(milliseconds(kAnswerStep / 2));
    }
    stop();
    if (fault()) return await_readers(patience_);
    others = others_alive();
    const auto end_of_requests = Clock::now() + kDonePatience;
    while (!others.empty() && Clock::now() < end_of_requests) {
      erase_with(others, {"done"});
      if (!others.empty()) std::this_thread::sleep_for(milliseconds(kAnswerStep / 4));
    }
  } catch (const std::exception&) {
    note_that_store_is_gone();
  }
}

}  // namespace palimpsest::distributed
