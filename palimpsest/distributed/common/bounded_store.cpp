#include "palimpsest/distributed/common/bounded_store.h"

#include <c10/util/Exception.h>

#include <type_traits>
#include <utility>
#include <variant>

namespace palimpsest::distributed {
namespace {

[[noreturn]] void no_answer() {
  C10_THROW_ERROR(DistStoreError, BoundedStore::kNoAnswer);
}

}  // namespace

BoundedStore::BoundedStore(Make make, Milliseconds limit, const std::function<bool()>& gives_up)
    : limit_(limit) {
  auto made = thread_.call(std::move(make), limit, gives_up);
  if (!made) no_answer();
  inner_ = std::move(*made);
  extended_ = inner_->hasExtendedApi();
  timeout_ = inner_->getTimeout();
}

void BoundedStore::shorten_limit(Milliseconds limit) noexcept {
  if (limit < limit_.load()) limit_ = limit;
  thread_.shorten(limit_);
}

void BoundedStore::give_up() noexcept {
  thread_.abandon();
}

/// Calls request(inner store) on the thread.
template <class Request>
auto BoundedStore::ask(Request request, Milliseconds own_timeout) {
  using Result = std::invoke_result_t<Request, c10d::Store&>;
  using Stored = std::conditional_t<std::is_void_v<Result>, std::monostate, Result>;
  const std::function<Stored()> function = [inner = inner_, request = std::move(request)]() -> Stored {
    if constexpr (std::is_void_v<Result>) {
      request(*inner);
      return {};
    } else {
      return request(*inner);
    }
  };
  auto result = thread_.call(function, limit_.load() + own_timeout);
  if (!result) no_answer();
  if constexpr (!std::is_void_v<Result>) return std::move(*result);
}

c10::intrusive_ptr<c10d::Store> BoundedStore::clone() {
  return c10::make_intrusive<BoundedStore>([inner = inner_] { return inner->clone(); }, limit_.load());
}
void BoundedStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  ask([=](Store& store) { store.set(key, value); });
}
std::vector<uint8_t> BoundedStore::compareSet(const std::string& key, const std::vector<uint8_t>& current,
                                              const std::vector<uint8_t>& desired) {
  return ask([=](Store& store) { return store.compareSet(key, current, desired); });
}
std::vector<uint8_t> BoundedStore::get(const std::string& key) {
  return ask([=](Store& store) { return store.get(key); });
}
int64_t BoundedStore::add(const std::string& key, int64_t value) {
  return ask([=](Store& store) { return store.add(key, value); });
}
bool BoundedStore::deleteKey(const std::string& key) {
  return ask([=](Store& store) { return store.deleteKey(key); });
}
bool BoundedStore::check(const std::vector<std::string>& keys) {
  return ask([=](Store& store) { return store.check(keys); });
}
int64_t BoundedStore::getNumKeys() {
  return ask([](Store& store) { return store.getNumKeys(); });
}
void BoundedStore::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}
void BoundedStore::wait(const std::vector<std::string>& keys, const Milliseconds& timeout) {
  ask([=](Store& store) { store.wait(keys, timeout); }, timeout);
}
void BoundedStore::setTimeout(const Milliseconds& timeout) {
  ask([=](Store& store) { store.setTimeout(timeout); });
  timeout_ = timeout;
}
void BoundedStore::append(const std::string& key, const std::vector<uint8_t>& value) {
  ask([=](Store& store) { store.append(key, value); });
}
std::vector<std::vector<uint8_t>> BoundedStore::multiGet(const std::vector<std::string>& keys) {
  return ask([=](Store& store) { return store.multiGet(keys); });
}
void BoundedStore::multiSet(const std::vector<std::string>& keys,
                            const std::vector<std::vector<uint8_t>>& values) {
  ask([=](Store& store) { store.multiSet(keys, values); });
}
bool BoundedStore::hasExtendedApi() const {
  return extended_;
}
void BoundedStore::queuePush(const std::string& key, const std::vector<uint8_t>& value) {
  ask([=](Store& store) { store.queuePush(key, value); });
}
std::vector<uint8_t> BoundedStore::queuePop(const std::string& key, bool block) {
  return ask([=](Store& store) { return store.queuePop(key, block); },
             block ? timeout_ : Milliseconds::zero());
}
int64_t BoundedStore::queueLen(const std::string& key) {
  return ask([=](Store& store) { return store.queueLen(key); });
}
std::vector<std::string> BoundedStore::listKeys() {
  return ask([](Store& store) { return store.listKeys(); });
}

}  // namespace palimpsest::distributed
