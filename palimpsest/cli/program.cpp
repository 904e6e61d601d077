#include "palimpsest/cli/program.h"

#include "palimpsest/base/error.h"
#include "palimpsest/cli/command_line.h"
#include "palimpsest/cli/commands.h"
#include "palimpsest/cli/exit_status.h"
#include "palimpsest/cli/process.h"
#include "palimpsest/cli/processes.h"
#include "palimpsest/kernels/cpu.h"
#include "palimpsest/memory/counting_allocator.h"

#include <csignal>
#include <iostream>

namespace palimpsest::cli {
namespace {

int run(const Options& options) {
  if (!options.run.row.empty() || options.run.list) return run_reproduce(options);
  switch (options.run.command) {
    case Command::kTrain:
      return run_train(options);
    case Command::kEval:
      return run_eval(options);
    case Command::kPredict:
      return run_predict(options);
    case Command::kInfo:
      return run_info(options);
    case Command::kCompare:
      return run_compare(options);
    case Command::kDemo:
      return run_demo(options);
    case Command::kImport:
      return run_import(options);
    case Command::kExport:
      return run_export(options);
    case Command::kReproduce:  // has become train or compare
      break;
    case Command::kData:
      return run_data(options);
    case Command::kReport:
      return run_report(options);
  }
  return 1;
}

int run_command_line(int argc, const char* const* argv) {
  Invocation invocation = parse_command_line(argc, argv);
  if (!invocation.text.empty()) {
    std::cout << invocation.text;
    return 0;
  }
  Options& options = invocation.options;
  if (const auto launch = distributed::launch_from_environment()) place(options, *launch);
  if (options.run.dry_run) {
    if (!options.run.launch || options.run.launch->rank == 0) std::cout << to_toml(options);
    return 0;
  }
  kernels::cpu::instruction_set();  // a wrong PALIMPSEST_ISA is an error before anything is written
  const Command command = options.run.command;
  if (command == Command::kTrain || command == Command::kCompare || command == Command::kDemo)
    hold_stop_signals();
  apply_process_options(options);
  return run(options);
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  memory::install_counting_allocator();  // before any tensor exists
  // A limit on file sizes then looks like a full disk: an error that names the file.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int exit_status = run_command_line(argc, argv);
    if (!std::cout.flush())
      throw Error(ErrorKind::kOutput,
                  "standard output cannot be written: a full disk, or a reader that is gone");
    return exit_status;
  } catch (...) {
    const ExitStatus status = exit_status_of(std::current_exception());
    std::cout.flush();
    std::cerr << "palimpsest: error: " << status.message << std::endl;
    return status.code;
  }
}

}  // namespace palimpsest::cli
