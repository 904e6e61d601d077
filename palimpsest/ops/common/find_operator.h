#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace palimpsest::ops {

/// Returns the registered operator `name` ("palimpsest::abn_forward"), whose kernels have the signature of
/// `Function`. Call it once and keep the result: it searches by name, while .call(...) only dispatches.
template <class Function>
auto find_operator(const char* name, Function*) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

}  // namespace palimpsest::ops
