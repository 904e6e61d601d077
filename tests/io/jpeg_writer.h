#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

// jpeglib.h needs cstdio's FILE before it.
#include <jpeglib.h>

// JPEG files of kinds that io never writes.
namespace palimpsest::testing {

struct JpegKind {
  int components = 3;  ///< 1 grey, 3 colour, 4 inks (CMYK)
  bool progressive = false;
  bool arithmetic = false;
  int restart_rows = 0;                    ///< rows of blocks between restart markers; 0: none
  std::vector<jpeg_scan_info> scans = {};  ///< empty: those that libjpeg chooses
};

/// Returns a picture of a smooth pattern as the kind of file.
inline std::string jpeg(int height, int width, const JpegKind& kind) {
  jpeg_compress_struct codec{};
  jpeg_error_mgr errors{};
  codec.err = jpeg_std_error(&errors);  // an error ends the test program
  jpeg_create_compress(&codec);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&codec, &bytes, &size);
  codec.image_height = static_cast<JDIMENSION>(height);
  codec.image_width = static_cast<JDIMENSION>(width);
  codec.input_components = kind.components;
  codec.in_color_space = kind.components == 1 ? JCS_GRAYSCALE : kind.components == 4 ? JCS_CMYK : JCS_RGB;
  jpeg_set_defaults(&codec);
  if (kind.progressive) jpeg_simple_progression(&codec);
  if (!kind.scans.empty()) {
    codec.scan_info = kind.scans.data();
    codec.num_scans = static_cast<int>(kind.scans.size());
  }
  codec.arith_code = kind.arithmetic ? TRUE : FALSE;
  codec.restart_in_rows = kind.restart_rows;
  jpeg_start_compress(&codec, TRUE);
  std::vector<unsigned char> row(static_cast<std::size_t>(width) * kind.components);
  while (codec.next_scanline < codec.image_height) {
    for (std::size_t i = 0; i < row.size(); ++i)
      row[i] =
          static_cast<unsigned char>(i * 3 + codec.next_scanline * 7 + (i % 5) * (codec.next_scanline % 3));
    JSAMPROW rows[] = {row.data()};
    jpeg_write_scanlines(&codec, rows, 1);
  }
  jpeg_finish_compress(&codec);
  std::string file(reinterpret_cast<char*>(bytes), size);
  jpeg_destroy_compress(&codec);
  std::free(bytes);
  return file;
}

/// A progressive file whose last scan, of the highest frequency, is repeated until there are `scans`. The
/// copies hold the same bits, so a reader would repeat its pass over the whole picture for each.
inline std::string progressive_jpeg(int height, int width, int scans) {
  std::vector<jpeg_scan_info> list{{3, {0, 1, 2, 0}, 0, 0, 0, 0}};
  for (int component = 0; component < 3; ++component) list.push_back({1, {component, 0, 0, 0}, 1, 63, 0, 0});
  std::string file = jpeg(height, width, {.progressive = true, .scans = list});
  const std::size_t last = file.rfind(std::string("\xFF\xDA", 2));
  const std::string scan = file.substr(last, file.size() - 2 - last);
  for (int i = 4; i < scans; ++i) file.insert(file.size() - 2, scan);
  return file;
}

inline constexpr uint32_t kOrientationTag = 0x0112, kShort = 3;

/// Returns an APP1 segment with the entries (tag, type, count, value) in the first directory of its Exif
/// data.
inline std::string exif_segment(bool little_endian, const std::vector<std::array<uint32_t, 4>>& entries,
                                uint32_t directory = 8) {
  std::string tiff(little_endian ? "II" : "MM");
  const auto add = [&](uint32_t value, int size) {
    for (int i = 0; i < size; ++i)
      tiff += static_cast<char>(value >> 8 * (little_endian ? i : size - 1 - i) & 255);
  };
  add(42, 2);
  add(directory, 4);
  add(static_cast<uint32_t>(entries.size()), 2);
  for (const auto& [tag, type, count, value] : entries) {
    add(tag, 2);
    add(type, 2);
    add(count, 4);
    add(value, 2);
    add(0, 2);
  }
  const std::string body = std::string("Exif\0\0", 6) + tiff;
  const std::size_t size = body.size() + 2;
  return "\xFF\xE1" + std::string{static_cast<char>(size >> 8), static_cast<char>(size & 255)} + body;
}

}  // namespace palimpsest::testing
