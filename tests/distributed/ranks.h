#pragma once

#include "palimpsest/distributed/process_group.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::distributed::testing {

/// What one rank of a test knows.
struct Place {
  Launch launch;       ///< all ranks are on this machine; rank 0 listens
  int listen_fd = -1;  ///< rank 0's socket, bound to a port that the system chose
  std::string argument;
  int round = 0;  ///< of RunOptions::rounds

  /// Options for the first group of the process.
  GroupOptions options() const {
    GroupOptions options;
    options.listen_fd = listen_fd;
    options.timeout = std::chrono::seconds(30);
    return options;
  }
};

/// The work of one rank. Returns its result as text. It runs in a process of its own.
using Body = std::function<std::string(const Place&)>;

/// `const RankBody kAnyName{"name", [](const Place& place) { ... }}` makes a body known to the program.
struct RankBody {
  RankBody(std::string name, Body body);
};

struct Outcome {
  std::string result;          ///< of the body
  std::optional<Error> error;  ///< that the body threw
  int signal = 0;              ///< that ended the process
  std::string message() const { return error ? error->what() : "no error; result '" + result + "'"; }
};

struct RunOptions {
  std::string argument = {};
  std::vector<int> absent = {};  ///< ranks that are not started
  bool agent_store = false;      ///< this process holds the store, as torchrun's agent does
  int rounds = 1;                ///< the processes are started that often, one set after the other has ended
  int size_of_last = 0;          ///< the number of ranks that the last rank believes in; 0: the true one
};

/// Runs a body in `size` processes and returns when all have ended. The processes are this program, started
/// anew: to fork a process that has libtorch's threads is unsafe. If one ends in another way than by a
/// result, an Error or a signal, or if 60 s pass, it kills all and adds a failure. Checks that the port is
/// free afterwards. Returns the outcomes of the last round.
std::vector<Outcome> run_ranks(const std::string& body, int size, const RunOptions& options = {});

/// Expects that no rank has thrown, and that all results are equal. Returns the result.
std::string common_result(const std::vector<Outcome>& outcomes);

/// Numbers as text without loss, for results.
std::string exact(double value);
std::string exact(const at::Tensor& values);

}  // namespace palimpsest::distributed::testing
