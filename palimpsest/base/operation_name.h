#pragma once

#include <string>
#include <utility>

namespace palimpsest {

/// This thread's innermost OperationName; "" if there is none. The dynamic linker merges inline variables.
inline thread_local std::string operation_name_now;

/// Names the collectives that this thread starts without a name of their own until the end of the scope, for
/// messages of distributed::Group: those of c10d and of operators. Scopes nest; the innermost counts.
class OperationName {
 public:
  explicit OperationName(std::string what) : outer_(std::exchange(operation_name_now, std::move(what))) {}
  ~OperationName() { operation_name_now = std::move(outer_); }
  OperationName(const OperationName&) = delete;
  OperationName& operator=(const OperationName&) = delete;

 private:
  std::string outer_;
};

}  // namespace palimpsest
