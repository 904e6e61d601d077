#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

/// What every benchmark shares: interleaved timing, one table, its JSON twin, the exit status.
namespace palimpsest::benchmarks {

/// Median and quartiles of some runs.
struct Spread {
  double median = 0;
  double low = 0;   ///< first quartile
  double high = 0;  ///< third quartile
};
/// Values are sorted on the way; at least one.
Spread spread_of(std::vector<double> values);
/// A quantity without spread, such as bytes.
inline Spread exactly(double value) {
  return {value, value, value};
}

/// The options of every benchmark program: --json PATH, --check, --repeats N.
struct Options {
  std::string json;    ///< where to write the JSON twin; empty: nowhere
  bool check = false;  ///< exit status 1 where a claim fails
  int repeats = 25;    ///< timed runs of each side
};
/// Reads them; ends the program for --help (status 0) and for a wrong option (status 2), saying why.
Options parse_options(int argc, char** argv, const std::string& description);

/// One run of one side: prepares, times what it measures and nothing else (seconds_of), returns seconds.
using Side = std::function<double()>;
double seconds_of(const std::function<void()>& work);
/// Runs the sides in turn, A B C  B C A  C A B ..., so that a slow moment of the machine hits all of them:
/// `warm_up` rounds that are thrown away, then `repeats`. Seconds, one entry a side.
/// `in_a_row`: runs of a side at a time. More than one, and the first is thrown away: for layers so small
/// that what the neighbour left in the caches is a tenth of their time.
std::vector<Spread> interleave(const std::vector<Side>& sides, int repeats, int warm_up = 3,
                               int in_a_row = 1);

/// As the system names it.
std::string processor_name();
/// Whether the system counts `flag`, such as "avx512_bf16", among what the processor can do.
bool processor_has(const std::string& flag);

/// One claim: `measured` is at most `limit` times `opponent`.
struct Row {
  std::string claim;          ///< what is compared, e.g. "(32, 256, 56, 56) NCHW"
  std::string opponent_name;  ///< what it is compared with, e.g. "batch_norm + leaky_relu_"
  std::string unit;           ///< of both values, e.g. "ms"
  Spread opponent;
  Spread measured;
  double limit = 0;  ///< infinite: a control, which claims nothing

  bool claims() const { return std::isfinite(limit); }
  double ratio() const { return measured.median / opponent.median; }
  bool pass() const { return ratio() <= limit; }
};

/// A table that grows line by line, and its JSON twin: machine (processor, threads, libtorch), rows, pass.
class Report {
 public:
  Report(std::string name, Options options);
  /// Prints the row; the header goes before the first.
  void add(const Row& row);
  /// Prints the sum, writes the JSON file. Returns the exit status of the program: 1 where a claim failed and
  /// --check was given or the file cannot be written, else 0.
  int finish() const;

 private:
  std::string name_;
  Options options_;
  std::vector<Row> rows_;
};

/// A whole benchmark program: the counting allocator, the options, the rows that `fill` adds, the exit status
/// of the report; 1, saying why, where `fill` throws.
int run_benchmark(const char* name, int argc, char** argv, const std::string& description,
                  const std::function<void(Report&, const Options&)>& fill);

/// The benchmarks, each the main function of the program bench_NAME (main.cpp), in a namespace of its own.
namespace block_time {
int run(int argc, char** argv);
}
namespace convolution_time {
int run(int argc, char** argv);
}
namespace densenet_bytes {
int run(int argc, char** argv);
}
namespace densenet_depth {  // a program of that name, as it takes too long for `make bench`
int run(int argc, char** argv);
}
namespace densenet_time {
int run(int argc, char** argv);
}
namespace kept_bytes {
int run(int argc, char** argv);
}
namespace layer_time {
int run(int argc, char** argv);
}
namespace max_pool_time {
int run(int argc, char** argv);
}
namespace model_step {
int run(int argc, char** argv);
}
namespace numerics {
int run(int argc, char** argv);
}
namespace precision_time {
int run(int argc, char** argv);
}

}  // namespace palimpsest::benchmarks
