#include "palimpsest/train/rethrow.h"

#include "palimpsest/base/error.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <exception>
#include <new>
#include <string_view>

namespace palimpsest::train {
namespace {

[[noreturn]] void out_of_memory(const std::string& doing, const std::string& reason) {
  throw Error(ErrorKind::kMemory,
              fmt::format("out of memory in {}: {}; use a smaller batch or crop, or strategy inplace", doing,
                          reason));
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

void rethrow_explained(const std::string& doing) {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    out_of_memory(doing, first_line(error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    out_of_memory(doing, "the system gave no more");
  } catch (const c10::Error& error) {
    const std::string text = first_line(error.what_without_backtrace());
    // libtorch's own CPU allocator throws a plain c10::Error.
    if (contains(text, "can't allocate memory") || contains(text, "not enough memory"))
      out_of_memory(doing, text);
    // What CUDA and its libraries take of a GPU beside libtorch's allocator.
    for (const char* reason :
         {"CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"})
      if (contains(text, reason)) out_of_memory(doing, text);
    if (contains(text, "value per channel")) {
      throw Error(
          ErrorKind::kUsage,
          fmt::format(
              "{} leaves one value per channel to normalize, and training needs at least 2 ({}); use a "
              "batch of at least 2 images ([train] batch divided by accumulate) or a larger crop",
              doing, text));
    }
    throw;
  }
}

}  // namespace palimpsest::train
