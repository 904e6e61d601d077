// tar_list_program ARCHIVE...: prints a line "OFFSET SIZE NAME" and the contents of each file in it. An archive that cannot
// be read is a line on standard error, and the exit status is 1.
#include "palimpsest/base/error.h"
#include "palimpsest/io/tar.h"

#include <iostream>

int main(int argc, char** argv) {
  int status = 0;
  for (int i = 1; i < argc; ++i) {
    try {
      palimpsest::io::TarReader archive(argv[i]);
      while (const auto member = archive.next())
        if (!member->is_link)
          std::cout << member->offset << " " << member->size << " " << member->name << "\n"
                    << archive.read(*member);
    } catch (const palimpsest::Error& error) {
      std::cerr << error.what() << "\n";
      status = 1;
    }
  }
  return status;
}
