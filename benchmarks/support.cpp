#include "benchmarks/support.h"

#include "palimpsest/base/error.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/kernels/cpu.h"
#include "palimpsest/memory/counting_allocator.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <limits>
#include <stdexcept>
#include <string_view>

namespace palimpsest::benchmarks {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Spread& s) {
  return {{"median", s.median}, {"low", s.low}, {"high", s.high}, {"runs", s.runs}};
}

Json to_json(const Row& row) {
  return {{"claim", row.claim},
          {"opponent_name", row.opponent_name},
          {"unit", row.unit},
          {"opponent", to_json(row.opponent)},
          {"measured", to_json(row.measured)},
          {"ratio", row.ratio()},
          {"limit", row.claims() ? Json(row.limit) : Json(nullptr)},
          {"pass", row.claims() ? Json(row.pass()) : Json(nullptr)}};
}

/// "10.12 (9.98-10.40) ms"; without the quartiles if there is no spread.
std::string to_text(const Spread& s, const std::string& unit) {
  char text[96];
  if (s.low == s.high) {
    std::snprintf(text, sizeof text, "%.2f %s", s.median, unit.c_str());
  } else {
    std::snprintf(text, sizeof text, "%.2f (%.2f-%.2f) %s", s.median, s.low, s.high, unit.c_str());
  }
  return text;
}

bool all_pass(const std::vector<Row>& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.pass(); });
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  // Linear between neighbours, so that an even count has its usual median.
  const auto quantile = [&](double q) {
    const double position = q * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(position);
    const size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
  };
  return {quantile(0.5), quantile(0.25), quantile(0.75), static_cast<int>(values.size())};
}

std::string commit() {
  const char* const name = std::getenv("PALIMPSEST_COMMIT");
  return name ? name : "unknown";
}

namespace {

/// For a whole number above 0. (CLI::PositiveNumber names the largest double in its message.)
std::string positive(const std::string& text) {
  const bool whole = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  const bool above = text.find_first_not_of('0') != std::string::npos;
  return whole && above ? "" : "a whole number above 0 is needed, got '" + text + "'";
}

/// What the times depend on, beside the code.
Json machine() {
  return {{"processor", processor_name()},
          {"threads", at::get_num_threads()},
          {"libtorch", TORCH_VERSION},
          {"instruction_set", kernels::cpu::instruction_set()},
          {"libtorch_instruction_set", at::get_cpu_capability()}};
}

}  // namespace

Options parse_options(int argc, char** argv, const std::string& description) {
  Options options;
  int threads = 0;
  bool describe = false;
  CLI::App app(description);
  app.add_option("--json", options.json, "also write the table to this JSON file");
  app.add_flag("--check", options.check, "exit status 1 if a claim fails");
  app.add_option("--repeats", options.repeats, "timed runs of each side")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--threads", threads, "threads of both sides; libtorch's number if not given")
      ->check(positive);
  app.add_flag("--describe", describe, "print the machine and the settings as JSON; measure nothing");
  app.footer(
      "PALIMPSEST_ISA names the instruction set of our kernels, ATEN_CPU_CAPABILITY that of libtorch's.");
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string(error.what()) + "; --help lists the options\n";
  });
  try {
    app.parse(argc, argv);
    kernels::cpu::instruction_set();
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  } catch (const std::invalid_argument& error) {  // of PALIMPSEST_ISA
    std::fprintf(stderr, "%s\n", error.what());
    std::exit(2);
  }
  if (threads > 0) at::set_num_threads(threads);
  if (describe) {
    std::printf("%s\n", machine().dump().c_str());
    std::exit(0);
  }
  return options;
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<Spread> interleave(const std::vector<Side>& sides, int repeats, int warm_up, int in_a_row) {
  std::vector<std::vector<double>> seconds(sides.size());
  for (int round = -warm_up; round < repeats; ++round) {
    for (size_t k = 0; k < sides.size(); ++k) {
      const size_t i = (k + static_cast<size_t>(round + warm_up)) % sides.size();
      if (in_a_row > 1) sides[i]();
      for (int run = std::min(1, in_a_row - 1); run < in_a_row; ++run) {
        const double value = sides[i]();
        if (round >= 0) seconds[i].push_back(value);
      }
    }
  }
  std::vector<Spread> spreads;
  for (auto& values : seconds) spreads.push_back(spread_of(std::move(values)));
  return spreads;
}

namespace {

/// The value of the first line of /proc/cpuinfo that begins with `key`; empty if there is no such line.
std::string processor_line(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.rfind(key, 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

}  // namespace

std::string processor_name() {
  const std::string name = processor_line("model name");
  return name.empty() ? "unknown" : name;
}

bool processor_has(const std::string& flag) {
  return (" " + processor_line("flags") + " ").find(" " + flag + " ") != std::string::npos;
}

double limit_of_set(double avx512, double avx2) {
  const std::string_view set = kernels::cpu::instruction_set();
  return set.starts_with("x86-64-v4") ? avx512
         : set == "x86-64-v3"         ? avx2
                                      : std::numeric_limits<double>::infinity();
}

Report::Report(std::string name, Options options) : name_(std::move(name)), options_(std::move(options)) {}

void Report::add(const Row& row) {
  if (rows_.empty()) {
    std::printf("%s: %s, %d threads, %s, libtorch %s with %s\n", name_.c_str(), processor_name().c_str(),
                at::get_num_threads(), kernels::cpu::instruction_set(), TORCH_VERSION,
                at::get_cpu_capability().c_str());
    std::printf("%-34s %-52s %-26s %6s %6s\n", "claim", "opponent", "measured", "ratio", "limit");
  }
  rows_.push_back(row);
  const std::string opponent = row.opponent_name + " " + to_text(row.opponent, row.unit);
  char limit[16] = "-";
  if (row.claims()) std::snprintf(limit, sizeof limit, "%.2f", row.limit);
  std::printf("%-34s %-52s %-26s %6.3f %6s  %s\n", row.claim.c_str(), opponent.c_str(),
              to_text(row.measured, row.unit).c_str(), row.ratio(), limit,
              !row.claims() ? "control"
              : row.pass()  ? "pass"
                            : "FAIL");
  std::fflush(stdout);
}

int Report::finish() const {
  const bool pass = all_pass(rows_);
  std::printf("%s: %s\n", name_.c_str(), pass ? "every claim holds" : "a claim FAILED");
  bool written = true;
  if (!options_.json.empty()) {
    Json rows = Json::array();
    for (const auto& row : rows_) rows.push_back(to_json(row));
    Json table{{"benchmark", name_}};
    table.update(machine());
    table.update({{"commit", commit()}, {"repeats", options_.repeats}, {"rows", rows}, {"pass", pass}});
    try {
      io::write_file_atomically(options_.json, table.dump(2) + "\n");
    } catch (const Error& error) {
      std::cerr << name_ << ": " << error.what() << '\n';
      written = false;
    }
  }
  return written && (pass || !options_.check) ? 0 : 1;
}

namespace {

std::map<std::string, Benchmark::Main>& registry() {
  static std::map<std::string, Benchmark::Main> benchmarks;
  return benchmarks;
}

int run(const std::string& name, int argc, char** argv, const std::string& description,
        const Benchmark::Fill& fill) {
  memory::install_counting_allocator();
  const Options options = parse_options(argc, argv, description);
  Report report(name, options);
  try {
    fill(report, options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
    return 1;
  }
  return report.finish();
}

}  // namespace

Benchmark::Benchmark(const std::string& name, const std::string& description, const Fill& fill)
    : Benchmark("bench_" + name,
                [=](int argc, char** argv) { return run(name, argc, argv, description, fill); }) {}

Benchmark::Benchmark(const std::string& program, const Main& main) {
  registry().emplace(program, main);
}

const std::map<std::string, Benchmark::Main>& Benchmark::all() {
  return registry();
}

}  // namespace palimpsest::benchmarks
