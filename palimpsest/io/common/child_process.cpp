#include "palimpsest/io/common/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

extern char** environ;

namespace palimpsest::io {
namespace {

constexpr std::size_t kMostErrors = 65536;

void require(int error_number, const std::string& doing) {
  if (error_number != 0) throw std::system_error(error_number, std::generic_category(), doing);
}

/// Closes a descriptor at the end of the scope.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }
  void close() {
    if (value_ >= 0) ::close(value_);
    value_ = -1;
  }

 private:
  int value_;
};

/// The operations on descriptors in a spawned process before its program starts.
class Actions {
 public:
  Actions() { require(posix_spawn_file_actions_init(&actions_), "posix_spawn"); }
  ~Actions() { posix_spawn_file_actions_destroy(&actions_); }
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;
  posix_spawn_file_actions_t* get() { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

/// Reads to the end of the pipe, so that its writer never blocks, and returns the first kMostErrors bytes.
std::string drain(int pipe) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::read(pipe, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer, std::min(static_cast<std::size_t>(got), kMostErrors - text.size()));
  }
}

}  // namespace

ChildResult run_child(const std::vector<std::string>& arguments, int output) {
  int ends[2];
  require(::pipe2(ends, O_CLOEXEC) == 0 ? 0 : errno, "pipe");
  const Descriptor from(ends[0]);
  Descriptor to(ends[1]);
  Actions actions;
  require(posix_spawn_file_actions_addopen(actions.get(), STDIN_FILENO, "/dev/null", O_RDONLY, 0), "spawn");
  require(posix_spawn_file_actions_adddup2(actions.get(), output, STDOUT_FILENO), "spawn");
  require(posix_spawn_file_actions_adddup2(actions.get(), to.get(), STDERR_FILENO), "spawn");

  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t child = 0;
  require(posix_spawnp(&child, argv[0], actions.get(), nullptr, argv.data(), environ), arguments[0]);
  to.close();  // otherwise the pipe would never end

  ChildResult result;
  result.errors = drain(from.get());
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) require(errno == EINTR ? 0 : errno, "waitpid");
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace palimpsest::io
