#include "palimpsest/base/error.h"
#include "palimpsest/io/image/codecs.h"

#include <ATen/ops/empty.h>

#include <png.h>

#include <csetjmp>
#include <cstring>
#include <new>
#include <stdexcept>
#include <vector>

namespace palimpsest::io::codecs {
namespace {

constexpr const char* kSoftwareKey = "Software";

struct PngErrors {
  char message[256] = "out of memory";
};

void on_error(png_structp png, png_const_charp message) {
  std::strncpy(static_cast<PngErrors*>(png_get_error_ptr(png))->message, message,
               sizeof(PngErrors::message) - 1);
  png_longjmp(png, 1);
}

// An odd colour profile or text chunk: the pixels are whole. But libpng only warns of a chunk that claims more than
// the limit, and takes memory for it.
void on_warning(png_structp png, png_const_charp message) {
  if (std::strstr(message, "chunk data is too large") != nullptr) png_error(png, message);
}

template <class Step>
bool attempt(png_structp png, const Step& step) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  step();
  return true;
}

struct PngDecoder {
  std::string_view rest;  // bytes not read yet
  PngErrors errors;
  png_structp png;
  png_infop info;

  explicit PngDecoder(std::string_view bytes)
      : rest(bytes),
        png(png_create_read_struct(PNG_LIBPNG_VER_STRING, &errors, on_error, on_warning)),
        info(png ? png_create_info_struct(png) : nullptr) {
    if (!info) {
      png_destroy_read_struct(&png, nullptr, nullptr);
      throw std::bad_alloc();
    }
    png_set_chunk_malloc_max(png, bytes.size() + 64);
    png_set_read_fn(png, this, [](png_structp p, png_bytep to, size_t count) {
      auto& source = static_cast<PngDecoder*>(png_get_io_ptr(p))->rest;
      if (count > source.size()) png_error(p, "premature end of file");
      std::memcpy(to, source.data(), count);
      source.remove_prefix(count);
    });
  }
  ~PngDecoder() { png_destroy_read_struct(&png, &info, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;
};

struct PngEncoder {
  std::string bytes;
  PngErrors errors;
  png_structp png;
  png_infop info;

  PngEncoder()
      : png(png_create_write_struct(PNG_LIBPNG_VER_STRING, &errors, on_error, on_warning)),
        info(png ? png_create_info_struct(png) : nullptr) {
    if (!info) {
      png_destroy_write_struct(&png, nullptr);
      throw std::bad_alloc();
    }
    const auto append = [](png_structp p, png_bytep from, size_t count) {
      bool appended = true;
      try {
        static_cast<PngEncoder*>(png_get_io_ptr(p))->bytes.append(reinterpret_cast<char*>(from), count);
      } catch (...) {  // must not unwind through libpng
        appended = false;
      }
      if (!appended) png_error(p, "out of memory");
    };
    png_set_write_fn(png, this, append, [](png_structp) {});
  }
  ~PngEncoder() { png_destroy_write_struct(&png, &info); }
  PngEncoder(const PngEncoder&) = delete;
  PngEncoder& operator=(const PngEncoder&) = delete;
};

struct Header {
  int64_t height, width;
  int bits, color;
};

Header read_header(PngDecoder& decoder, const std::filesystem::path& path) {
  const auto file_bytes = static_cast<int64_t>(decoder.rest.size());
  if (!attempt(decoder.png, [&] { png_read_info(decoder.png, decoder.info); })) {
    fail_to_read(path, decoder.errors.message);
  }
  const Header header{
      png_get_image_height(decoder.png, decoder.info), png_get_image_width(decoder.png, decoder.info),
      png_get_bit_depth(decoder.png, decoder.info), png_get_color_type(decoder.png, decoder.info)};
  check_pixels(path, header.height, header.width);
  // A byte of deflate gives at most 1032 bytes. So a header cannot claim what the file cannot hold.
  constexpr int64_t kMostDeflated = 1032;
  const auto row_bytes = static_cast<int64_t>(png_get_rowbytes(decoder.png, decoder.info));
  if (row_bytes * header.height > kMostDeflated * (file_bytes + 64))
    fail_to_read(path, "its header says " + std::to_string(header.width) + "x" +
                           std::to_string(header.height) + " pixels, which " + std::to_string(file_bytes) +
                           " bytes cannot hold: it is truncated");
  return header;
}

// Reads all rows: `channels` bytes per pixel, after the transformations that `prepare` requests from libpng.
template <class Prepare>
at::Tensor read_pixels(PngDecoder& decoder, const std::filesystem::path& path, const Header& header,
                       int64_t channels, const Prepare& prepare) {
  const int64_t row_bytes = header.width * channels;
  at::Tensor pixels = at::empty({header.height, header.width, channels}, at::kByte);
  std::vector<png_bytep> rows(header.height);
  for (int64_t y = 0; y < header.height; ++y) rows[y] = pixels.mutable_data_ptr<uint8_t>() + y * row_bytes;
  const bool succeeded = attempt(decoder.png, [&] {
    prepare();
    png_set_interlace_handling(decoder.png);
    png_read_update_info(decoder.png, decoder.info);
    if (png_get_rowbytes(decoder.png, decoder.info) != static_cast<size_t>(row_bytes)) {
      png_error(decoder.png, "unexpected number of bytes in a row");
    }
    png_read_image(decoder.png, rows.data());
    png_read_end(decoder.png, nullptr);  // an error if the file is truncated after its pixels
  });
  if (!succeeded) fail_to_read(path, decoder.errors.message);
  return pixels;
}

const char* color_name(int color) {
  switch (color) {
    case PNG_COLOR_TYPE_RGB:
      return "an RGB picture";
    case PNG_COLOR_TYPE_RGB_ALPHA:
      return "an RGB picture with alpha";
    default:
      return "a grey picture with alpha";
  }
}

}  // namespace

ImageSize size_of_png(std::string_view bytes, const std::filesystem::path& path) {
  PngDecoder decoder(bytes);
  const Header header = read_header(decoder, path);
  return {header.height, header.width};
}

std::string software_of_png(std::string_view bytes, const std::filesystem::path& path) {
  PngDecoder decoder(bytes);
  read_header(decoder, path);
  png_textp texts = nullptr;
  int count = 0;
  png_get_text(decoder.png, decoder.info, &texts, &count);
  for (int i = 0; i < count; ++i)
    if (std::string_view(texts[i].key) == kSoftwareKey) return {texts[i].text, texts[i].text_length};
  return "";
}

at::Tensor decode_png(std::string_view bytes, const std::filesystem::path& path) {
  PngDecoder decoder(bytes);
  const Header header = read_header(decoder, path);
  return read_pixels(decoder, path, header, 3, [&] {
    png_set_scale_16(decoder.png);
    png_set_expand(decoder.png);  // palettes to RGB, 1 to 4 bits to 8, transparent colours to alpha
    png_set_gray_to_rgb(decoder.png);
    png_set_strip_alpha(decoder.png);
  });
}

at::Tensor decode_png_labels(std::string_view bytes, const std::filesystem::path& path) {
  PngDecoder decoder(bytes);
  const Header header = read_header(decoder, path);
  if (header.color != PNG_COLOR_TYPE_GRAY && header.color != PNG_COLOR_TYPE_PALETTE) {
    throw Error(ErrorKind::kData,
                "label '" + path.string() + "' is " + color_name(header.color) +
                    "; a label needs one class id per pixel: save it as 8-bit grey or palette PNG");
  }
  // Packing gives the stored numbers, one per byte; expanding would turn 1-bit ids into 0 and 255.
  const at::Tensor raw = read_pixels(decoder, path, header, header.bits == 16 ? 2 : 1,
                                     [&] { png_set_packing(decoder.png); });  // (H, W, 1 or 2)
  if (header.bits != 16) return raw.squeeze(2);
  const auto* high = raw.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < header.height * header.width; ++i) {
    if (high[2 * i] != 0) {
      throw Error(ErrorKind::kData, "label '" + path.string() + "' has 16 bits per pixel and the value " +
                                        std::to_string(256 * high[2 * i] + high[2 * i + 1]) + " at row " +
                                        std::to_string(i / header.width) + ", column " +
                                        std::to_string(i % header.width) + "; class ids go from 0 to 255");
    }
  }
  return raw.select(2, 1).contiguous();
}

namespace {

/// Encodes contiguous pixels of `color_type`, with a palette for PNG_COLOR_TYPE_PALETTE.
std::string encode(const at::Tensor& image, int color_type, const std::vector<png_color>& palette) {
  PngEncoder encoder;
  const int64_t height = image.size(0), width = image.size(1);
  const auto* pixels = image.const_data_ptr<uint8_t>();
  std::vector<png_bytep> rows(height);
  for (int64_t y = 0; y < height; ++y)
    rows[y] = const_cast<png_bytep>(pixels + y * width * (image.dim() == 2 ? 1 : 3));
  std::string key = kSoftwareKey, software(kPngSoftware);
  png_text text{};
  text.compression = PNG_TEXT_COMPRESSION_NONE;
  text.key = key.data();
  text.text = software.data();
  text.text_length = software.size();
  const bool succeeded = attempt(encoder.png, [&] {
    png_set_IHDR(encoder.png, encoder.info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height),
                 8, color_type, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (!palette.empty())
      png_set_PLTE(encoder.png, encoder.info, palette.data(), static_cast<int>(palette.size()));
    png_set_text(encoder.png, encoder.info, &text, 1);
    png_write_info(encoder.png, encoder.info);
    png_write_image(encoder.png, rows.data());
    png_write_end(encoder.png, nullptr);
  });
  if (!succeeded) throw std::invalid_argument(std::string("cannot encode a PNG: ") + encoder.errors.message);
  return std::move(encoder.bytes);
}

}  // namespace

std::string encode_png(const at::Tensor& image) {
  return encode(image, image.dim() == 2 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB, {});
}

std::string encode_png_labels(const at::Tensor& labels, const std::vector<std::array<uint8_t, 3>>& palette) {
  std::vector<png_color> colors;
  colors.reserve(palette.size());
  for (const auto& [red, green, blue] : palette) colors.push_back({red, green, blue});
  return encode(labels, palette.empty() ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_PALETTE, colors);
}

}  // namespace palimpsest::io::codecs
