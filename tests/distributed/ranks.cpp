#include "tests/distributed/ranks.h"

#include "tests/support/main.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <system_error>

extern char** environ;  // NOLINT(readability-redundant-declaration): unistd.h declares it for GNU only

namespace palimpsest::distributed::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLimit{60};
constexpr int kUnexpected = 99;
/// The descriptors that a rank finds its socket and its way back at.
constexpr int kListenFd = 100, kResultFd = 101;

std::map<std::string, Body>& bodies() {
  static std::map<std::string, Body> all;
  return all;
}

[[noreturn]] void system_failure(const char* call) {
  throw std::system_error(errno, std::generic_category(), call);
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

void write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const auto count = ::write(fd, text.data() + done, text.size() - done);
    if (count < 0) system_failure("write");
    done += static_cast<std::size_t>(count);
  }
}

/// In a process that run_ranks has started: runs the body and ends the process.
const palimpsest::testing::Prepare kRunBody{[] {
  const std::string name = variable("PALIMPSEST_TEST_BODY");
  if (name.empty()) return 0;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  at::set_num_threads(1);
  Place place;
  place.launch.rank = std::stoi(variable("PALIMPSEST_TEST_RANK"));
  place.launch.size = std::stoi(variable("PALIMPSEST_TEST_SIZE"));
  place.launch.local_rank = place.launch.rank;
  place.launch.local_size = place.launch.size;
  place.launch.port = static_cast<uint16_t>(std::stoi(variable("PALIMPSEST_TEST_PORT")));
  place.launch.agent_store = !variable("PALIMPSEST_TEST_AGENT_STORE").empty();
  if (place.launch.rank == 0 && !place.launch.agent_store) place.listen_fd = kListenFd;
  place.argument = variable("PALIMPSEST_TEST_ARGUMENT");
  place.round = std::stoi(variable("PALIMPSEST_TEST_ROUND"));
  std::string answer;
  int status = 0;
  try {
    answer = bodies().at(name)(place).insert(0, 1, 'r');
  } catch (const Error& error) {
    answer = fmt::format("e{} {}", error.exit_code(), error.what());
  } catch (const std::exception& error) {
    answer = std::string("x") + error.what();
    status = kUnexpected;
  }
  write_all(kResultFd, answer);
  std::exit(status);
}};

/// A socket that listens at a port which the system has chosen.
struct Listener {
  int fd = -1;
  uint16_t port = 0;
};

int bound_socket(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) system_failure("socket");
  const int yes = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    ::close(fd);
    return -1;
  }
  return fd;
}

Listener listen_anywhere() {
  Listener listener;
  listener.fd = bound_socket(0);
  sockaddr_in address{};
  socklen_t length = sizeof address;
  if (listener.fd < 0 || ::listen(listener.fd, 64) != 0 ||
      ::getsockname(listener.fd, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    system_failure("listen");
  listener.port = ntohs(address.sin_port);
  return listener;
}

struct Process {
  pid_t id = -1;
  int result_fd = -1;
  std::string answer;
};

Process start(const std::string& body, int rank, int size, int round, const Listener& listener,
              const RunOptions& options) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) system_failure("pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], kResultFd);
  if (rank == 0 && !options.agent_store) posix_spawn_file_actions_adddup2(&actions, listener.fd, kListenFd);
  std::vector<std::string> variables{
      "PALIMPSEST_TEST_BODY=" + body,
      fmt::format("PALIMPSEST_TEST_RANK={}", rank),
      fmt::format("PALIMPSEST_TEST_SIZE={}", size),
      fmt::format("PALIMPSEST_TEST_PORT={}", listener.port),
      "PALIMPSEST_TEST_ARGUMENT=" + options.argument,
      fmt::format("PALIMPSEST_TEST_ROUND={}", round),
      std::string("PALIMPSEST_TEST_AGENT_STORE=") + (options.agent_store ? "1" : ""),
      "OMP_NUM_THREADS=1",
  };
  for (char** one = environ; *one; ++one)
    if (const std::string text = *one;
        text.rfind("OMP_NUM_THREADS=", 0) && text.rfind("TORCH_CPP_LOG_LEVEL=", 0))
      variables.push_back(text);
  std::vector<char*> environment;
  for (auto& text : variables) environment.push_back(text.data());
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe";
  char* arguments[] = {program.data(), nullptr};
  Process process;
  const int status =
      ::posix_spawn(&process.id, program.c_str(), &actions, nullptr, arguments, environment.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (status != 0) {
    errno = status;
    system_failure("posix_spawn");
  }
  process.result_fd = ends[0];
  return process;
}

/// Reads the answers until all processes have closed their ends. Returns why that did not go well, or "".
std::string read_answers(std::vector<Process>& processes) {
  const auto end = Clock::now() + kLimit;
  std::size_t open = processes.size();
  while (open > 0) {
    std::vector<pollfd> waiting;
    std::vector<std::size_t> owners;
    for (std::size_t i = 0; i < processes.size(); ++i)
      if (processes[i].result_fd >= 0) {
        waiting.push_back({processes[i].result_fd, POLLIN, 0});
        owners.push_back(i);
      }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0 || ::poll(waiting.data(), waiting.size(), static_cast<int>(left)) <= 0)
      return fmt::format("{} ranks did not end within {} s", open, kLimit.count());
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].revents == 0) continue;
      Process& process = processes[owners[i]];
      char buffer[65536];
      const auto count = ::read(process.result_fd, buffer, sizeof buffer);
      if (count > 0) {
        process.answer.append(buffer, static_cast<std::size_t>(count));
        continue;
      }
      ::close(process.result_fd);
      process.result_fd = -1;
      --open;
      if (!process.answer.empty() && process.answer[0] == 'x')
        return "a rank threw: " + process.answer.substr(1);
    }
  }
  return "";
}

Outcome outcome_of(const Process& process, int status) {
  Outcome outcome;
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  if (process.answer.empty()) return outcome;
  const std::string text = process.answer.substr(1);
  if (process.answer[0] == 'e') {
    std::size_t length = 0;
    const int kind = std::stoi(text, &length);
    outcome.error.emplace(static_cast<ErrorKind>(kind), text.substr(length + 1));
  } else {
    outcome.result = text;
  }
  return outcome;
}

}  // namespace

RankBody::RankBody(std::string name, Body body) {
  bodies().emplace(std::move(name), std::move(body));
}

namespace {

/// Starts the processes of one round. Those of a round without a launcher inherit the listener.
std::vector<Process> start_all(const std::string& body, int size, int round, const Listener& listener,
                               const RunOptions& options) {
  std::vector<Process> processes;
  for (int rank = 0; rank < size; ++rank) {
    if (std::find(options.absent.begin(), options.absent.end(), rank) != options.absent.end()) continue;
    const bool misled = rank == size - 1 && options.size_of_last > 0;
    processes.push_back(start(body, rank, misled ? options.size_of_last : size, round, listener, options));
  }
  return processes;
}

std::vector<Outcome> await_all(const std::string& body, std::vector<Process>& processes) {
  const std::string trouble = read_answers(processes);
  std::vector<Outcome> outcomes;
  for (auto& process : processes) {
    if (!trouble.empty()) ::kill(process.id, SIGKILL);
    if (process.result_fd >= 0) ::close(process.result_fd);
    int status = 0;
    ::waitpid(process.id, &status, 0);
    if (trouble.empty() && WIFEXITED(status) && WEXITSTATUS(status) != 0)
      ADD_FAILURE() << body << ": a rank ended with status " << WEXITSTATUS(status);
    outcomes.push_back(outcome_of(process, status));
  }
  if (!trouble.empty()) ADD_FAILURE() << body << ": " << trouble;
  return outcomes;
}

}  // namespace

std::vector<Outcome> run_ranks(const std::string& body, int size, const RunOptions& options) {
  const Listener listener = listen_anywhere();
  std::vector<Process> processes = start_all(body, size, /*round=*/0, listener, options);
  c10::intrusive_ptr<c10d::TCPStore> agent;
  if (options.agent_store) {
    c10d::TCPStoreOptions serving;
    serving.port = listener.port;
    serving.isServer = true;
    serving.waitWorkers = false;
    serving.masterListenFd = listener.fd;  // the store closes it
    agent = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", serving);
  } else {
    ::close(listener.fd);
  }
  std::vector<Outcome> outcomes = await_all(body, processes);
  for (int round = 1; round < options.rounds; ++round) {
    processes = start_all(body, size, round, listener, options);
    outcomes = await_all(body, processes);
  }
  agent.reset();
  const int port_again = bound_socket(listener.port);
  EXPECT_GE(port_again, 0) << body << ": the port " << listener.port << " is still in use";
  if (port_again >= 0) ::close(port_again);
  return outcomes;
}

std::string common_result(const std::vector<Outcome>& outcomes) {
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_FALSE(outcomes[i].error) << "rank " << i << ": " << outcomes[i].message();
    EXPECT_EQ(outcomes[i].signal, 0) << "rank " << i;
    EXPECT_EQ(outcomes[i].result, outcomes[0].result) << "rank " << i << " and rank 0";
  }
  return outcomes[0].result;
}

std::string exact(double value) {
  return fmt::format("{:a}", value);
}

std::string exact(const at::Tensor& values) {
  const at::Tensor flat = values.detach().to(at::kDouble).contiguous().view({-1});
  std::string text;
  for (int64_t i = 0; i < flat.numel(); ++i) text += exact(flat.const_data_ptr<double>()[i]) + " ";
  return text;
}

}  // namespace palimpsest::distributed::testing
