// forking_program SOCKET: runs the program as often as it is asked to, each time in a process of its own,
// forked from one that has loaded libtorch: loading takes half a second, many tests ask for nothing but a
// line of error.
//
// A request (one message on SOCKET, a SOCK_SEQPACKET): texts that each end with a 0 byte: the working
// directory, the number of arguments, the arguments, and the environment's "NAME=value"s; with it the
// descriptors of stdin, stdout and stderr. Two messages answer, an int each: the process's id, then how it
// ended, as waitpid has it. Libraries that read the environment when they are loaded see the environment of
// this process.
#include "palimpsest/cli/process.h"
#include "palimpsest/cli/program.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kLargestRequest = 1 << 17;
constexpr int kDescriptors = 3;

[[noreturn]] void fail(const char* doing) {
  std::perror(doing);
  std::exit(EXIT_FAILURE);
}

struct Request {
  std::vector<char> text;
  int descriptors[kDescriptors];
};

/// False when nobody asks any more.
bool receive(int socket, Request& request) {
  request.text.resize(kLargestRequest);
  iovec part{request.text.data(), request.text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof request.descriptors)];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t size = recvmsg(socket, &message, 0);
  if (size < 0) fail("forking_program: recvmsg");
  if (size == 0) return false;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC) || header == nullptr ||
      header->cmsg_len != CMSG_LEN(sizeof request.descriptors)) {
    std::fputs("forking_program: a request of at most 128 KiB with three descriptors is required\n", stderr);
    std::exit(EXIT_FAILURE);
  }
  std::memcpy(request.descriptors, CMSG_DATA(header), sizeof request.descriptors);
  request.text.resize(static_cast<std::size_t>(size));
  return true;
}

[[noreturn]] void run(Request& request) {
  for (int i = 0; i < kDescriptors; ++i) {
    if (dup2(request.descriptors[i], i) < 0) fail("forking_program: dup2");
    close(request.descriptors[i]);
  }
  std::vector<char*> texts;
  for (char *at = request.text.data(), *end = at + request.text.size(); at < end; at += std::strlen(at) + 1)
    texts.push_back(at);
  if (chdir(texts[0]) != 0) fail("forking_program: chdir");
  const int count = std::atoi(texts[1]);
  clearenv();
  for (std::size_t i = 2 + static_cast<std::size_t>(count); i < texts.size(); ++i) putenv(texts[i]);
  palimpsest::cli::end_process(palimpsest::cli::run_program(count, texts.data() + 2));
}

void answer(int socket, int value) {
  if (send(socket, &value, sizeof value, MSG_NOSIGNAL) != sizeof value) fail("forking_program: send");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: forking_program SOCKET\n", stderr);
    return EXIT_FAILURE;
  }
  const int socket = std::atoi(argv[1]);
  for (Request request; receive(socket, request);) {
    const pid_t child = fork();
    if (child < 0) fail("forking_program: fork");
    if (child == 0) {
      close(socket);
      run(request);
    }
    for (const int descriptor : request.descriptors) close(descriptor);
    answer(socket, child);
    int status;
    if (waitpid(child, &status, 0) != child) fail("forking_program: waitpid");
    answer(socket, status);
  }
}
