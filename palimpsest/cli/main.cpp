#include "palimpsest/cli/process.h"
#include "palimpsest/cli/program.h"

int main(int argc, char** argv) {
  palimpsest::cli::end_process(palimpsest::cli::run_program(argc, argv));
}
