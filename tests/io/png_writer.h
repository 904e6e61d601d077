#pragma once

#include <png.h>

#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <vector>

namespace palimpsest::testing {

/// A PNG of any colour type and depth from its packed rows. Colour i of a palette is (10 i, 100 + 10 i, 200 +
/// 10 i) modulo 256.
inline void write_raw_png(const std::filesystem::path& path, unsigned width, unsigned height, int bits,
                          int color, std::vector<unsigned char> packed) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (!file) throw std::runtime_error("cannot open " + path.string());
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_init_io(png, file);
  png_set_IHDR(png, info, width, height, bits, color, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (color == PNG_COLOR_TYPE_PALETTE) {
    std::vector<png_color> palette;
    for (int i = 0; i < 1 << bits; ++i) {
      palette.push_back({static_cast<png_byte>(10 * i), static_cast<png_byte>(100 + 10 * i),
                         static_cast<png_byte>(200 + 10 * i)});
    }
    png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
  }
  png_write_info(png, info);
  const std::size_t row_bytes = packed.size() / height;
  for (unsigned y = 0; y < height; ++y) png_write_row(png, packed.data() + y * row_bytes);
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  std::fclose(file);
}

}  // namespace palimpsest::testing
