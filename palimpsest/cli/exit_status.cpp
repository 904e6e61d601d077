#include "palimpsest/cli/exit_status.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <new>
#include <system_error>

namespace palimpsest::cli {
namespace {

// A name in the message may come out of a file, and may have megabytes.
constexpr std::size_t kLongestLine = 4000;

std::string one_line(const std::string& text) {
  return printable(shortened(text, kLongestLine));
}

// libtorch's messages go on with the places that it was called from.
std::string first_line(const std::string& text) {
  return one_line(text.substr(0, text.find('\n')));
}

int code(ErrorKind kind) {
  return static_cast<int>(kind);
}

}  // namespace

ExitStatus exit_status_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return {one_line(error.what()), error.exit_code()};
  } catch (const c10::DistError& error) {
    return {first_line(error.what_without_backtrace()), code(ErrorKind::kPeer)};
  } catch (const c10::OutOfMemoryError& error) {
    return {first_line(error.what_without_backtrace()), code(ErrorKind::kMemory)};
  } catch (const c10::Error& error) {
    const std::string line = first_line(error.what_without_backtrace());
    // Batch normalization refuses one value per channel, but does not know the flags.
    if (line.find("per channel") != std::string::npos)
      return {line + "; a larger --batch (or --crop) gives more", code(ErrorKind::kUsage)};
    return {line, code(ErrorKind::kInternal)};
  } catch (const std::bad_alloc&) {
    return {"out of memory: the system refused an allocation; a smaller --batch or --crop needs less",
            code(ErrorKind::kMemory)};
  } catch (const std::filesystem::filesystem_error& error) {
    const std::string path = error.path1().string();
    return {one_line("cannot read '" + path + "': " + error.code().message()), code(ErrorKind::kData)};
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again)
      return {one_line(error.what()), code(ErrorKind::kInternal)};
    return {"the system starts no more threads; fewer --threads or --workers need less, or raise 'ulimit -u'",
            code(ErrorKind::kMemory)};
  } catch (const std::exception& error) {
    const std::string line = first_line(error.what());
    // A variable of the environment (PALIMPSEST_ISA) that the kernels refuse counts as a wrong flag.
    return {line, code(line.starts_with("PALIMPSEST_") ? ErrorKind::kUsage : ErrorKind::kInternal)};
  } catch (...) {
    return {"an unknown exception", code(ErrorKind::kInternal)};
  }
}

}  // namespace palimpsest::cli
