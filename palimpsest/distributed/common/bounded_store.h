#pragma once

#include "palimpsest/distributed/common/abandonable_thread.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace palimpsest::distributed {

/// How long a rank that has something to report, or that leaves, waits for an answer.
inline constexpr std::chrono::milliseconds kStorePatience{5000};

/// A store whose requests end. c10d::TCPStore waits for an answer without limit, if the process with the
/// server hangs or the network between them is cut.
///
/// A request throws c10::DistStoreError where no answer comes within the limit; wait() where none comes within
/// the limit and its own timeout. No later request is sent then.
class BoundedStore : public c10d::Store {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using Make = std::function<c10::intrusive_ptr<c10d::Store>()>;

  /// The message of the exception.
  static constexpr const char* kNoAnswer = "no answer: it hangs, or its machine is unreachable";

  /// Calls `make`, which must own all that it refers to, as the first request.
  /// `gives_up` ends this request only.
  BoundedStore(Make make, Milliseconds limit, const std::function<bool()>& gives_up = {});

  void set_limit(Milliseconds limit) noexcept { limit_ = limit; }
  /// The limit of all requests, also of those that wait for their answer now.
  void shorten_limit(Milliseconds limit) noexcept;
  /// Ends the requests that wait, and all later ones.
  void give_up() noexcept;

  using Store::compareSet;
  using Store::set;
  c10::intrusive_ptr<Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& current,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const Milliseconds& timeout) override;
  void setTimeout(const Milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override;
  void queuePush(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> queuePop(const std::string& key, bool block) override;
  int64_t queueLen(const std::string& key) override;
  std::vector<std::string> listKeys() override;

 private:
  template <class Request>
  auto ask(Request request, Milliseconds own_timeout = Milliseconds::zero());

  AbandonableThread thread_{"pal_store"};
  std::atomic<Milliseconds> limit_;
  c10::intrusive_ptr<c10d::Store> inner_;
  bool extended_ = false;
};

}  // namespace palimpsest::distributed
