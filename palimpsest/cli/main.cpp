#include "palimpsest/cli/program.h"

int main(int argc, char** argv) {
  return palimpsest::cli::run_program(argc, argv);
}
