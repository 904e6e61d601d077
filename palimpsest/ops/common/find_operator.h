#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace palimpsest::ops {

/// The registered operator `name` ("palimpsest::abn_forward"), whose kernels have the signature of
/// `Function`; ask once and keep it: find_operator(...) is a search by name, .call(...) on it a dispatch.
template <class Function>
auto find_operator(const char* name, Function*) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

}  // namespace palimpsest::ops
