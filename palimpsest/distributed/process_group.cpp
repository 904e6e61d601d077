#include "palimpsest/distributed/process_group.h"

#include "palimpsest/base/printable.h"
#include "palimpsest/distributed/common/abandonable_thread.h"
#include "palimpsest/distributed/common/guarded_backend.h"
#include "palimpsest/distributed/common/libtorch.h"
#include "palimpsest/distributed/common/message_text.h"
#include "palimpsest/distributed/common/rendezvous.h"
#include "palimpsest/distributed/common/watcher.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace palimpsest::distributed {
namespace {

using std::chrono::milliseconds;

/// How long a rank that leaves waits for the others: until they have read what it sent in the last
/// collective.
constexpr milliseconds kFarewell{2000};
constexpr milliseconds kLongestTimeout = std::chrono::hours(24 * 365);
/// The operation in which Gloo's connections are made, and what to do where it fails between ranks that live.
constexpr const char* kConnecting = "connecting the ranks to each other";
constexpr const char* kReachable =
    "each rank must have an address that the others reach: GLOO_SOCKET_IFNAME names the network interface";
constexpr int64_t kPieceBytes = int64_t{25} << 20;

void check_launch(const Launch& launch, const GroupOptions& options) {
  if (launch.size < 1 || launch.rank < 0 || launch.rank >= launch.size)
    throw Error(ErrorKind::kUsage, fmt::format("[distributed] a rank must be in [0, size), got rank {} of {}",
                                               launch.rank, launch.size));
  if (launch.size > kMostRanks)
    throw Error(ErrorKind::kUsage,
                fmt::format("[distributed] there must be at most {} ranks, got {}", kMostRanks, launch.size));
  if (options.timeout <= milliseconds::zero())
    throw Error(ErrorKind::kUsage,
                fmt::format("[distributed] timeout must be above 0, got {} ms", options.timeout.count()));
  if (options.timeout > kLongestTimeout)
    throw Error(ErrorKind::kUsage, fmt::format("[distributed] timeout must be at most a year, got {} ms",
                                               options.timeout.count()));
  if (options.name.empty())
    throw Error(ErrorKind::kUsage, "[distributed] the name of a group must not be empty, got ''");
}

/// Gloo writes to connections that a rank may have closed: the signal would end the process before the error is
/// known. A handler of the program stays.
void ignore_broken_pipes() {
  struct sigaction now{};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

/// Raises the soft limit of open files to what the ranks of a group need. Throws Error(kUsage) if the hard
/// limit is lower. The store of rank 0 has two connections per rank, Gloo has one to each other rank.
void allow_open_files(const Launch& launch) {
  constexpr rlim_t kOther = 128;  // libraries, images, and what the program itself has open
  const auto needed = static_cast<rlim_t>(launch.size) * (launch.rank == 0 ? 4 : 1) + kOther;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  if (limit.rlim_max < needed)
    throw Error(
        ErrorKind::kUsage,
        fmt::format("[distributed] rank {} of {} needs {} open files at once, and may have {}: raise the "
                    "limit (ulimit -n)",
                    launch.rank, launch.size, needed, limit.rlim_max));
  limit.rlim_cur = needed;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// The names that are in use. c10d's registry would replace a group of the same name.
class Names {
 public:
  static void take(const std::string& name) {
    const std::lock_guard lock(mutex());
    if (!names().insert(name).second)
      throw Error(ErrorKind::kUsage,
                  fmt::format("[distributed] the name of a group must be unique, '{}' is in use: set "
                              "GroupOptions::name",
                              printable(name)));
  }
  static void give_back(const std::string& name) {
    const std::lock_guard lock(mutex());
    names().erase(name);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::set<std::string>& names() {
    static std::set<std::string> all;
    return all;
  }
};

class NameTaken {
 public:
  explicit NameTaken(std::string name) : name_(std::move(name)) { Names::take(name_); }
  ~NameTaken() { Names::give_back(name_); }
  NameTaken(const NameTaken&) = delete;
  NameTaken& operator=(const NameTaken&) = delete;

 private:
  const std::string name_;
};

}  // namespace

class Group::State {
 public:
  State(const Launch& launch, const GroupOptions& options);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  /// Waits on the host for a collective on the CPU; on a GPU, lets the current stream wait.
  template <class Start>
  void run(const std::string& what, const Start& start) {
    const OperationName name(what);
    const c10::intrusive_ptr<c10d::Work> work = start(*process_group);
    work->wait();
  }

  std::vector<at::Tensor> all_gather(const at::Tensor& tensor, const std::string& what);
  void check_device(const at::Tensor& tensor, const std::string& what) const;

  const Launch launch;
  const GroupOptions options;
  const NameTaken name_taken;
  Meeting meeting;
  std::shared_ptr<Guard> guard = std::make_shared<Guard>();
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  bool cuda = false;
  std::atomic<int> stop{0};
  int64_t begun_at_common_error = -1;  ///< collectives begun when throw_on_all was called

 private:
  void make_process_group();
  c10::intrusive_ptr<c10d::Backend> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store);
  void leave() noexcept;
};

Group::State::State(const Launch& launch_, const GroupOptions& options_)
    : launch(launch_), options(options_), name_taken(options_.name) {
  const bool alone = launch.size == 1 && !launch.agent_store;
  if (!alone) {
    ignore_broken_pipes();
    allow_open_files(launch);
  }
  meeting = alone ? meet_nobody() : meet(launch, options);
  if (!alone) {
    Watcher::Options watching;
    watching.rank = launch.rank;
    watching.size = launch.size;
    watching.holds_store = meeting.server != nullptr;
    watching.store_owner = meeting.store_owner;
    watching.timeout = options.timeout;
    watching.on_fault = options.on_fault;
    guard->watcher =
        std::make_shared<Watcher>(meeting.watcher_connection, meeting.watcher_store, std::move(watching));
  }
  try {
    make_process_group();
  } catch (const std::exception& error) {
    const auto watcher = guard->watcher;
    if (watcher && !watcher->fault()) watcher->transport_failed(kConnecting, error.what(), kReachable);
    const auto fault = watcher ? watcher->fault() : std::nullopt;
    leave();
    if (fault) throw Error(*fault);
    throw Error(ErrorKind::kPeer, fmt::format("[distributed] {} failed: {}; {}", kConnecting,
                                              reason_of(error.what()), kReachable));
  }
}

/// Connects the ranks to each other. Gloo waits for each of them up to the timeout, and does not look whether
/// it lives.
c10::intrusive_ptr<c10d::Backend> Group::State::connect_gloo(const c10::intrusive_ptr<c10d::Store>& store) {
  const std::function<c10::intrusive_ptr<c10d::Backend>()> connect =
      [store, rank = launch.rank, size = launch.size, timeout = options.timeout,
       one_machine = launch.local_size == launch.size] {
        return make_gloo(store, rank, size, timeout, one_machine);
      };
  const auto watcher = guard->watcher;
  if (!watcher) return connect();
  const auto thread = std::make_shared<AbandonableThread>("pal_connect");
  watcher->begin(kConnecting);
  const int64_t id = watcher->add(kConnecting, [thread](const std::exception_ptr&) { thread->abandon(); });
  // Gloo's own timeout counts for each connection.
  auto gloo = thread->call(connect, 2 * options.timeout, options.gives_up);
  watcher->remove(id);
  if (gloo) return std::move(*gloo);
  if (options.gives_up && options.gives_up())
    watcher->publish("was stopped while the ranks connected to each other", ErrorKind::kPeer);
  if (const auto fault = watcher->fault()) throw Error(*fault);
  throw Error(ErrorKind::kPeer, "timed out");
}

void Group::State::make_process_group() {
  const auto store_of = [&](const std::string& transport) -> c10::intrusive_ptr<c10d::Store> {
    return c10::make_intrusive<c10d::PrefixStore>(transport, meeting.store);
  };
  process_group = c10::make_intrusive<c10d::ProcessGroup>(store_of("group"), launch.rank, launch.size);
  const auto add = [&](c10::DeviceType device, c10d::ProcessGroup::BackendType type,
                       c10::intrusive_ptr<c10d::Backend> backend, bool host_waits) {
    process_group->setBackend(device, type,
                              c10::make_intrusive<GuardedBackend>(std::move(backend), guard, host_waits));
  };
  add(c10::kCPU, c10d::ProcessGroup::GLOO, connect_gloo(store_of("gloo")), /*host_waits=*/true);
  process_group->setDefaultBackend(c10d::ProcessGroup::GLOO);
  cuda = has_nccl();
  if (cuda) {
    add(c10::kCUDA, c10d::ProcessGroup::NCCL,
        make_nccl(store_of("nccl"), launch.rank, launch.size, options.timeout), /*host_waits=*/false);
    if (guard->watcher)
      guard->watcher->at_fault(
          [backend = process_group->getBackend(c10d::ProcessGroup::NCCL)] { backend->abort(); });
  }
  process_group->setGroupName(options.name);
  c10d::register_process_group(options.name, process_group);
}

void Group::State::leave() noexcept {
  const auto watcher = guard->watcher;
  if (process_group) c10d::unregister_process_group(options.name);
  if (!watcher) {
    process_group.reset();
    return;
  }
  if (!watcher->fault() && std::uncaught_exceptions() > 0 && begun_at_common_error != watcher->begun())
    watcher->publish("left the group by an exception: its own message says why", ErrorKind::kPeer);
  watcher->leave();
  watcher->await_farewells(kFarewell);
  watcher->at_fault(nullptr);
  meeting.connection->shorten_limit(kStorePatience);  // NCCL's threads ask over it until they end
  process_group.reset();
  watcher->finish(options.timeout);
}

Group::State::~State() {
  leave();
}

void Group::State::check_device(const at::Tensor& tensor, const std::string& what) const {
  if (!tensor.defined() || tensor.layout() != at::kStrided)
    throw Error(ErrorKind::kUsage, fmt::format("[distributed] {}: the tensor must be dense, got {}", what,
                                               tensor.defined() ? "a sparse one" : "an undefined one"));
  if (tensor.is_cpu() || (cuda && tensor.is_cuda())) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("[distributed] {}: the tensor must be on the CPU{}, got device {}{}", what,
                          cuda ? " or a CUDA device" : "", tensor.device().str(),
                          cuda ? "" : ": build palimpsest with PALIMPSEST_CUDA=ON for GPUs"));
}

std::vector<at::Tensor> Group::State::all_gather(const at::Tensor& tensor, const std::string& what) {
  check_device(tensor, what);
  const at::NoGradGuard no_grad;
  // As bytes: a transport does not know every dtype.
  const at::Tensor whole = tensor.detach().contiguous();
  const at::Tensor mine = whole.reshape({-1}).view(at::kByte);
  std::vector<at::Tensor> shares;
  shares.reserve(static_cast<std::size_t>(launch.size));
  for (int rank = 0; rank < launch.size; ++rank) shares.push_back(at::empty_like(mine));
  std::vector<std::vector<at::Tensor>> outputs{shares};
  std::vector<at::Tensor> inputs{mine};
  run(what, [&](c10d::ProcessGroup& group) { return group.allgather(outputs, inputs); });
  for (auto& share : shares) share = share.view(tensor.scalar_type()).view(whole.sizes());
  return shares;
}

Group::Group(const Launch& launch, const GroupOptions& options) {
  check_launch(launch, options);
  state_ = std::make_unique<State>(launch, options);
}
Group::~Group() = default;

int Group::rank() const {
  return state_->launch.rank;
}
int Group::size() const {
  return state_->launch.size;
}
const std::string& Group::name() const {
  return state_->options.name;
}
const Launch& Group::launch() const {
  return state_->launch;
}
uint16_t Group::port() const {
  return state_->meeting.port;
}
bool Group::has_cuda() const {
  return state_->cuda;
}
milliseconds Group::timeout() const {
  return state_->options.timeout;
}
const c10::intrusive_ptr<c10d::ProcessGroup>& Group::process_group() const {
  return state_->process_group;
}

void Group::broadcast(const std::vector<at::Tensor>& tensors, const std::string& what, int root) {
  const at::NoGradGuard no_grad;
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> kinds;
  for (const auto& tensor : tensors) {
    state_->check_device(tensor, what);
    if (tensor.numel() > 0) kinds[{tensor.device().str(), tensor.scalar_type()}].push_back(tensor.detach());
  }
  const auto send = [&](const std::vector<at::Tensor>& piece) {
    std::vector<at::Tensor> flat_parts;
    flat_parts.reserve(piece.size());
    for (const auto& tensor : piece) flat_parts.push_back(tensor.contiguous().reshape({-1}));
    const at::Tensor flat = piece.size() == 1 ? flat_parts[0] : at::cat(flat_parts);
    std::vector<at::Tensor> bytes{flat.view(at::kByte)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    state_->run(what, [&](c10d::ProcessGroup& group) { return group.broadcast(bytes, options); });
    if (rank() == root) return;
    int64_t offset = 0;
    for (const auto& tensor : piece) {
      const at::Tensor part = flat.narrow(0, offset, tensor.numel()).view(tensor.sizes());
      if (part.data_ptr() != tensor.data_ptr()) tensor.copy_(part);
      offset += tensor.numel();
    }
  };
  for (const auto& [kind, all] : kinds) {
    std::vector<at::Tensor> piece;
    int64_t bytes = 0;
    for (const auto& tensor : all) {
      if (!piece.empty() && bytes + static_cast<int64_t>(tensor.nbytes()) > kPieceBytes) {
        send(piece);
        piece.clear();
        bytes = 0;
      }
      piece.push_back(tensor);
      bytes += static_cast<int64_t>(tensor.nbytes());
    }
    send(piece);
  }
}

namespace {

/// Calls reduce on memory without gaps and puts the result into `tensor`.
template <class Reduce>
void reduce_in_place(const at::Tensor& tensor, const Reduce& reduce) {
  const at::NoGradGuard no_grad;
  const at::Tensor plain = tensor.detach();
  const at::Tensor whole = plain.contiguous();
  std::vector<at::Tensor> operands{whole.view({-1})};
  reduce(operands);
  if (whole.data_ptr() != plain.data_ptr()) plain.copy_(whole);
}

}  // namespace

void Group::all_reduce_sum(const at::Tensor& tensor, const std::string& what) {
  state_->check_device(tensor, what);
  reduce_in_place(tensor, [&](std::vector<at::Tensor>& operands) {
    state_->run(what, [&](c10d::ProcessGroup& group) { return group.allreduce(operands); });
  });
}

void Group::all_reduce_max(const at::Tensor& tensor, const std::string& what) {
  state_->check_device(tensor, what);
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  reduce_in_place(tensor, [&](std::vector<at::Tensor>& operands) {
    state_->run(what, [&](c10d::ProcessGroup& group) { return group.allreduce(operands, options); });
  });
}

std::vector<at::Tensor> Group::all_gather(const at::Tensor& tensor, const std::string& what) {
  return state_->all_gather(tensor, what);
}

std::vector<double> Group::sum(std::span<const double> values, const std::string& what) {
  const auto count = static_cast<int64_t>(values.size());
  const at::Tensor mine = at::empty({count}, at::kDouble);
  std::copy(values.begin(), values.end(), mine.data_ptr<double>());
  std::vector<double> sums(values.size(), 0);
  for (const auto& share : all_gather(mine, what))
    for (int64_t i = 0; i < count; ++i) sums[static_cast<std::size_t>(i)] += share.data_ptr<double>()[i];
  return sums;
}

std::vector<int64_t> Group::sum(std::span<const int64_t> values, const std::string& what) {
  const at::Tensor total = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), total.data_ptr<int64_t>());
  all_reduce_sum(total, what);
  const auto* begin = total.const_data_ptr<int64_t>();
  return {begin, begin + values.size()};
}

double Group::sum(double value, const std::string& what) {
  return sum(std::span<const double>(&value, 1), what)[0];
}
int64_t Group::sum(int64_t value, const std::string& what) {
  return sum(std::span<const int64_t>(&value, 1), what)[0];
}

int64_t Group::max(int64_t value, const std::string& what) {
  const at::Tensor largest = at::full({1}, value, at::kLong);
  all_reduce_max(largest, what);
  return largest.const_data_ptr<int64_t>()[0];
}

bool Group::any(bool value, const std::string& what) {
  return max(value ? 1 : 0, what) != 0;
}
bool Group::all(bool value, const std::string& what) {
  return !any(!value, what);
}

std::vector<std::string> Group::all_gather_bytes(const std::string& bytes, const std::string& what) {
  const auto sizes = state_->all_gather(at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong), what);
  int64_t longest = 0;
  for (const auto& size : sizes) longest = std::max(longest, size.const_data_ptr<int64_t>()[0]);
  const at::Tensor mine = at::zeros({longest}, at::kByte);
  if (!bytes.empty()) std::memcpy(mine.data_ptr(), bytes.data(), bytes.size());
  const auto shares =
      longest > 0 ? state_->all_gather(mine, what) : std::vector<at::Tensor>(sizes.size(), mine);
  std::vector<std::string> all;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const auto size = static_cast<std::size_t>(sizes[i].const_data_ptr<int64_t>()[0]);
    all.emplace_back(size == 0 ? "" : static_cast<const char*>(shares[i].const_data_ptr()), size);
  }
  return all;
}

std::string Group::broadcast_bytes(const std::string& bytes, const std::string& what, int root) {
  const at::Tensor size = at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong);
  broadcast({size}, what, root);
  const int64_t length = size.const_data_ptr<int64_t>()[0];
  const at::Tensor content = at::zeros({length}, at::kByte);
  if (rank() == root && length > 0) std::memcpy(content.data_ptr(), bytes.data(), bytes.size());
  broadcast({content}, what, root);
  return length == 0 ? std::string()
                     : std::string(static_cast<const char*>(content.const_data_ptr()),
                                   static_cast<std::size_t>(length));
}

void Group::barrier(const std::string& what) {
  state_->run(what, [&](c10d::ProcessGroup& group) {
    return group.getBackend(c10::kCPU)->barrier(c10d::BarrierOptions());
  });
}

void Group::require_same(const std::string& text, const std::string& what, ErrorKind kind) {
  std::string mine;
  if (const auto difference = first_difference(broadcast_bytes(text, what), text))
    mine = fmt::format("'{}' and '{}'", printable(shortened(difference->left, 300)),
                       printable(shortened(difference->right, 300)));
  const auto all = all_gather_bytes(mine, what);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty())
      throw_on_all({kind, fmt::format("{} of rank 0 and rank {} differ: {}", what, rank, all[rank])});
}

void Group::throw_on_all(const Error& error) {
  if (const auto& watcher = state_->guard->watcher) state_->begun_at_common_error = watcher->begun();
  throw Error(error);
}

void Group::fail(const std::string& message, ErrorKind kind) noexcept {
  if (state_->guard->watcher) state_->guard->watcher->publish(message, kind);
}

std::optional<Error> Group::fault() const {
  return state_->guard->watcher ? state_->guard->watcher->fault() : std::nullopt;
}

void Group::check() const {
  if (const auto error = fault()) throw Error(*error);
}

void Group::request_stop(int reason) noexcept {
  // An atomic int without a lock may be used in a signal handler.
  static_assert(std::atomic<int>::is_always_lock_free);
  std::atomic<int>& stop = state_->stop;
  int seen = stop.load();
  while (seen < reason && !stop.compare_exchange_weak(seen, reason)) {
  }
}

int Group::stop_requested() const noexcept {
  return state_->stop.load();
}

int Group::agree_on_stop() {
  return static_cast<int>(max(stop_requested(), "the request to stop"));
}

Traffic Group::traffic() const {
  return {state_->guard->collectives.load(), state_->guard->bytes.load()};
}

}  // namespace palimpsest::distributed
