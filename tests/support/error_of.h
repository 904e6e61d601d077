#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace palimpsest::testing {

/// The message of the c10::Error that `call` raises, without its backtrace; "" if it raises none.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace palimpsest::testing
