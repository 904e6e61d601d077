// pillow_program JOBS: does what each line of the file JOBS says, for test_pillow.py. All files are PNG.
//   resize FROM TO HEIGHT WIDTH bilinear|bicubic
//   label FROM TO HEIGHT WIDTH
//   brightness|contrast|saturation FROM TO FACTOR
#include "palimpsest/data/colors.h"
#include "palimpsest/data/resize.h"
#include "palimpsest/data/transforms.h"
#include "palimpsest/io/image.h"

#include <exception>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>

namespace {

using namespace palimpsest;

void run(const std::string& line) {
  std::istringstream words(line);
  std::string what, from, to;
  words >> what >> from >> to;
  if (what == "label") {
    int64_t height = 0, width = 0;
    words >> height >> width;
    const data::View view{height, width, 0, 0, height, width, false};
    io::write_png(to, data::view_label(io::read_label(from), view, 255, at::kByte));
    return;
  }
  const at::Tensor image = io::read_image(from);
  if (what == "resize") {
    int64_t height = 0, width = 0;
    std::string filter;
    words >> height >> width >> filter;
    io::write_png(to, data::resize(image, height, width,
                                   filter == "bicubic" ? data::Filter::kBicubic : data::Filter::kBilinear));
    return;
  }
  data::ColorChange change;
  using Kind = data::ColorChange::Kind;
  const Kind kind = what == "brightness" ? Kind::kBrightness
                    : what == "contrast" ? Kind::kContrast
                                         : Kind::kSaturation;
  words >> change.factor[kind];
  if (!words) throw std::runtime_error("not a job: " + line);
  data::change_colors(image, change);
  io::write_png(to, image);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: pillow_program JOBS\n";
    return 2;
  }
  try {
    std::ifstream jobs(argv[1]);
    for (std::string line; std::getline(jobs, line);) run(line);
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
