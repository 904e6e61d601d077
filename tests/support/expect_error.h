#pragma once

#include "palimpsest/base/error.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace palimpsest::testing {

/// Expects `action` to throw palimpsest::Error of `kind` in one line that has all of `parts`.
template <class Action>
void expect_error(ErrorKind kind, const std::vector<std::string>& parts, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.exit_code(), static_cast<int>(kind)) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const auto& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
    return;
  }
  ADD_FAILURE() << "nothing was thrown";
}

/// Expects `action` to throw Error(kUsage) and returns its message; "" where nothing was thrown.
template <class Action>
std::string usage_error(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "expected palimpsest::Error, nothing was thrown";
  return "";
}

}  // namespace palimpsest::testing
