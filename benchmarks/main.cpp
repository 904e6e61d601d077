// All benchmarks are one program, whose sources are compiled together, because most of a unit's time goes
// into libtorch's headers. The name by which it is called (a link, see CMakeLists.txt) chooses the benchmark.
#include "benchmarks/support.h"

#include <cstdio>
#include <string>

int main(int argc, char** argv) {
  const auto& programs = palimpsest::benchmarks::Benchmark::all();
  const std::string path = argv[0], name = path.substr(path.rfind('/') + 1);
  const auto program = programs.find(name);
  if (program != programs.end()) return program->second(argc, argv);
  std::fprintf(stderr, "%s: call it by one of these names:", name.c_str());
  for (const auto& [known, _] : programs) std::fprintf(stderr, " %s", known.c_str());
  std::fprintf(stderr, "\n");
  return 2;
}
