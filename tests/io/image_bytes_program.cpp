// image_bytes_program IMAGE: prints "HEIGHT WIDTH" and the bytes of the image as io::read_image reads it.
#include "palimpsest/base/error.h"
#include "palimpsest/io/image.h"

#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const at::Tensor image = palimpsest::io::read_image(argv[1]);
    std::cout << image.size(0) << " " << image.size(1) << "\n";
    std::cout.write(static_cast<const char*>(image.const_data_ptr()),
                    static_cast<std::streamsize>(image.nbytes()));
  } catch (const palimpsest::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
