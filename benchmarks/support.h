#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

/// The parts that every benchmark shares: interleaved timing, a table, the same table as JSON, the exit
/// status.
namespace palimpsest::benchmarks {

/// Median and quartiles of some runs.
struct Spread {
  double median = 0;
  double low = 0;   ///< first quartile
  double high = 0;  ///< third quartile
  int runs = 0;     ///< 0: a quantity without spread
};
/// Takes at least one value.
Spread spread_of(std::vector<double> values);
/// A quantity without spread, such as bytes.
inline Spread exactly(double value) {
  return {value, value, value, 0};
}

/// The options of every benchmark program: --json PATH, --check, --repeats N, --threads N, --describe.
struct Options {
  std::string json;    ///< the JSON file to write; empty: none
  bool check = false;  ///< exit status 1 if a claim fails
  int repeats = 25;    ///< timed runs of each side; a benchmark of long steps makes a part of them
};
/// Reads the options and PALIMPSEST_ISA, and sets libtorch's and our threads. Ends the program for --help, and
/// for --describe, which prints the machine (status 0); and with one line for a wrong value (status 2).
Options parse_options(int argc, char** argv, const std::string& description);

/// One run of one side: prepares, times the measured work only (seconds_of), and returns the time.
using Side = std::function<double()>;
double seconds_of(const std::function<void()>& work);
/// Runs the sides in turn, A B C  B C A  C A B ..., so that a slow moment of the machine hits all sides:
/// `warm_up` rounds that do not count, then `repeats` rounds. Returns one entry per side.
/// `in_a_row`: runs of a side at a time. If there are several, the first does not count: for layers so small
/// that the state of the caches after the other sides is a tenth of their time.
std::vector<Spread> interleave(const std::vector<Side>& sides, int repeats, int warm_up = 3,
                               int in_a_row = 1);

/// Returns the system's name of the processor.
std::string processor_name();
/// Returns the commit of the code, which scripts/run_benchmarks names in PALIMPSEST_COMMIT, or "unknown".
std::string commit();
/// Returns whether the system lists `flag`, such as "avx512_bf16", among the processor's features.
bool processor_has(const std::string& flag);

/// Returns the limit of a claim that depends on the instruction set of our kernels; infinite with any other set, so
/// that nothing is claimed.
double limit_of_set(double avx512, double avx2);

/// One claim: `measured` is at most `limit` times `opponent`.
struct Row {
  std::string claim;          ///< the measured case, e.g. "(32, 256, 56, 56) NCHW"
  std::string opponent_name;  ///< e.g. "batch_norm + leaky_relu_"
  std::string unit;           ///< of both values, e.g. "ms"
  Spread opponent;
  Spread measured;
  double limit = 0;  ///< infinite: the row is a control, which claims nothing

  bool claims() const { return std::isfinite(limit); }
  double ratio() const { return measured.median / opponent.median; }
  bool pass() const { return ratio() <= limit; }
};

/// A table that grows row by row, and the same as JSON: machine (processor, threads, libtorch, the instruction
/// sets of both sides), rows, pass.
class Report {
 public:
  Report(std::string name, Options options);
  /// Prints the row, and the header before the first row.
  void add(const Row& row);
  /// Prints whether every claim holds and writes the JSON file. Returns the exit status of the program: 1 if
  /// a claim failed and --check was given, or if the file cannot be written; else 0.
  int finish() const;

 private:
  std::string name_;
  Options options_;
  std::vector<Row> rows_;
};

/// A benchmark. Each source defines one at namespace scope, which registers it under its program's name:
///   const Benchmark kBenchmark("layer_time", "Times one fused layer ...", measure_all);
class Benchmark {
 public:
  using Fill = std::function<void(Report&, const Options&)>;
  using Main = std::function<int(int argc, char** argv)>;

  /// The program bench_NAME: installs the counting allocator, reads the options, lets `fill` add the rows,
  /// and returns the exit status of the report; 1, with a message, if `fill` throws.
  Benchmark(const std::string& name, const std::string& description, const Fill& fill);
  /// A program with a main function of its own.
  Benchmark(const std::string& program, const Main& main);

  /// The main functions of all benchmarks, by the names of their programs.
  static const std::map<std::string, Main>& all();
};

}  // namespace palimpsest::benchmarks
