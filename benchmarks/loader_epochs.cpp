// loader_epochs FOLDER: reads the images FOLDER/train/CLASS/NAME.jpg for benchmarks/loader_time.py. For each line on
// standard input it reads one epoch and prints its milliseconds: one thread decodes, scales the short side of 500x375
// pixels to 256, cuts 224x224 pixels at random, mirrors, normalizes and stacks batches of 32.
#include "palimpsest/data/image_folder.h"
#include "palimpsest/data/loader.h"

#include <chrono>
#include <exception>
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  namespace data = palimpsest::data;
  if (argc != 2) {
    std::cerr << "loader_epochs: needs the folder of the images\n";
    return 2;
  }
  try {
    data::TransformOptions transform;
    transform.crop = 224;
    transform.scale_min = transform.scale_max = 256.0 / 375;
    data::Loader loader(data::image_folder(argv[1], "train", transform), {.batch_size = 32, .workers = 1});
    int64_t epoch = 0;
    for (std::string line; std::getline(std::cin, line); ++epoch) {
      const auto start = std::chrono::steady_clock::now();
      loader.start_epoch(epoch);
      while (loader.next()) {
      }
      const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - start;
      std::cout << passed.count() << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "loader_epochs: " << error.what() << "\n";
    return 1;
  }
}
