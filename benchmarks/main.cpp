// All benchmarks are one program, whose sources are compiled together: most of a unit's time goes into
// libtorch's headers. Its names say which.
#include "benchmarks/support.h"

#include <cstdio>
#include <map>
#include <string>

int main(int argc, char** argv) {
  using namespace palimpsest;
  static const std::map<std::string, int (*)(int, char**)> kPrograms = {
      {"bench_block_time", benchmarks::block_time::run},
      {"bench_convolution_time", benchmarks::convolution_time::run},
      {"bench_densenet_bytes", benchmarks::densenet_bytes::run},
      {"bench_densenet_time", benchmarks::densenet_time::run},
      {"bench_kept_bytes", benchmarks::kept_bytes::run},
      {"bench_layer_time", benchmarks::layer_time::run},
      {"bench_max_pool_time", benchmarks::max_pool_time::run},
      {"bench_model_step", benchmarks::model_step::run},
      {"bench_numerics", benchmarks::numerics::run},
      {"bench_precision_time", benchmarks::precision_time::run},
      {"densenet_depth", benchmarks::densenet_depth::run}};
  const std::string path = argv[0], name = path.substr(path.rfind('/') + 1);
  const auto program = kPrograms.find(name);
  if (program != kPrograms.end()) return program->second(argc, argv);
  std::fprintf(stderr, "%s: call it by one of its names:", name.c_str());
  for (const auto& [known, _] : kPrograms) std::fprintf(stderr, " %s", known.c_str());
  std::fprintf(stderr, "\n");
  return 2;
}
