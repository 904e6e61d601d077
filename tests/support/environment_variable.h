#pragma once

#include <cstdlib>
#include <string>

namespace palimpsest::testing {

/// A variable of the environment for the time of a scope.
class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before, was_set_ = true;
    setenv(name, value.c_str(), 1);
  }
  ~EnvironmentVariable() {
    if (was_set_) {
      setenv(name_, before_.c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::string before_;
  bool was_set_ = false;
};

}  // namespace palimpsest::testing
