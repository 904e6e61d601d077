#pragma once

#include "palimpsest/distributed/process_group.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <vector>

namespace palimpsest::train::testing {

/// Listens at a free port of this machine.
struct Listener {
  Listener() : descriptor(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const bool listens = ::bind(descriptor, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                         ::listen(descriptor, 64) == 0 &&
                         ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    EXPECT_TRUE(listens);
    port = ntohs(address.sin_port);
  }

  int descriptor;
  uint16_t port = 0;
};

/// Runs `body` in `size` processes of one group, forked from this one. A failed expectation or an exception
/// in one of them is a failure of the test. Each computes with one thread: a forked process has no other.
inline void on_ranks(int size, const std::function<void(distributed::Group& group)>& body) {
  const Listener listener;
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    at::set_num_threads(1);
    try {
      distributed::Launch launch;
      launch.rank = launch.local_rank = rank;
      launch.size = launch.local_size = size;
      launch.port = listener.port;
      distributed::GroupOptions options;
      options.timeout = std::chrono::minutes(1);
      if (rank == 0) options.listen_fd = listener.descriptor;
      if (rank > 0) ::close(listener.descriptor);
      distributed::Group group(launch, options);
      body(group);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << ": " << error.what();
    }
    std::fflush(nullptr);
    std::_Exit(::testing::Test::HasFailure() ? EXIT_FAILURE : EXIT_SUCCESS);
  }
  ::close(listener.descriptor);
  for (std::size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    ASSERT_EQ(::waitpid(children[rank], &status, 0), children[rank]);
    EXPECT_EQ(status, 0) << "rank " << rank;
  }
}

}  // namespace palimpsest::train::testing
