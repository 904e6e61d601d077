#include "palimpsest/distributed/common/guarded_backend.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::distributed {
namespace {

using ValueFuture = c10::intrusive_ptr<c10::ivalue::Future>;

/// A collective that ends when the test completes its future.
class OpenWork : public c10d::Work {
 public:
  explicit OpenWork(ValueFuture future) : future_(std::move(future)) {}
  ValueFuture getFuture() override { return future_; }

 private:
  const ValueFuture future_;
};

class OpenBackend : public c10d::Backend {
 public:
  OpenBackend() : Backend(/*rank=*/0, /*size=*/2) {}
  const std::string getBackendName() const override { return "open"; }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override {
    started.push_back(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors()));
    return c10::make_intrusive<OpenWork>(started.back());
  }

  std::vector<ValueFuture> started;
};

/// The watcher ends what waits one after the other. A connection may close when it has ended the first.
TEST(GuardedBackend, GivesTheFaultToAWorkThatBreaksWhileOthersEnd) {
  const std::chrono::seconds timeout{30};
  const auto store = c10::make_intrusive<BoundedStore>(
      [] { return c10::intrusive_ptr<c10d::Store>(c10::make_intrusive<c10d::HashStore>()); }, timeout);
  Watcher::Options watching;
  watching.size = 2;
  watching.timeout = timeout;
  const auto guard = std::make_shared<Guard>();
  guard->watcher = std::make_shared<Watcher>(store, store, watching);
  const auto transport = c10::make_intrusive<OpenBackend>();
  GuardedBackend backend(transport, guard, /*host_waits=*/true);
  const auto first = backend.barrier({});
  const auto second = backend.barrier({});
  bool broke = false;
  first->getFuture()->addCallback([&](c10::ivalue::Future&) {
    broke = true;
    transport->started[1]->setError(std::make_exception_ptr(std::runtime_error("Connection reset by peer")));
  });
  guard->watcher->publish("image 3 is truncated", ErrorKind::kData);
  EXPECT_TRUE(broke);
  transport->started[0]->setError(std::make_exception_ptr(std::runtime_error("Connection reset by peer")));
  for (const auto& work : {first, second}) try {
      work->wait();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_STREQ(error.what(), "rank 0 of 2: image 3 is truncated");
    }
}

}  // namespace
}  // namespace palimpsest::distributed
