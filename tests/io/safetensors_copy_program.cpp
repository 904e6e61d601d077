// safetensors_copy_program FROM TO: reads a file with our reader and writes it with our writer, for
// safetensors_test.py.
#include "palimpsest/io/safetensors.h"

#include <exception>
#include <iostream>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: safetensors_copy_program FROM TO\n";
    return 2;
  }
  try {
    palimpsest::io::write_safetensors(argv[2], palimpsest::io::read_safetensors(argv[1]));
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
