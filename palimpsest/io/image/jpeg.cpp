#include "palimpsest/io/image/codecs.h"
#include "palimpsest/io/image/exif.h"

#include <ATen/ops/empty.h>

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

// jpeglib.h needs cstdio's FILE before it, and jerror.h needs jpeglib.h: its numbers depend on the library's
// version.
#include <jpeglib.h>

#include <jerror.h>

namespace palimpsest::io::codecs {
namespace {

constexpr int kExifMarker = JPEG_APP0 + 1;

struct JpegErrors {
  jpeg_error_mgr base;  // first: libjpeg hands its address back to us
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void on_error(j_common_ptr codec) {
  auto* errors = reinterpret_cast<JpegErrors*>(codec->err);
  errors->base.format_message(codec, errors->message);
  // Its words for more memory than it may use.
  if (codec->err->msg_code == JERR_NO_BACKING_STORE || codec->err->msg_code == JERR_OUT_OF_MEMORY)
    std::snprintf(errors->message, JMSG_LENGTH_MAX, "its decoding takes more than 1 GiB");
  std::longjmp(errors->jump, 1);
}

// libjpeg calls lost pixels a warning and paints them grey. Training on that would go unnoticed.
void on_message(j_common_ptr codec, int level) {
  if (level >= 0) return;  // a trace
  switch (codec->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_NOT_SEQUENTIAL:
    case JWRN_ARITH_BAD_CODE:
      on_error(codec);
    default:
      ++codec->err->num_warnings;  // bytes after the end, an odd version number: the pixels are whole
  }
}

// A progressive file repeats a pass over the whole picture per scan, and a scan may have few bytes. Encoders
// write about ten scans.
constexpr int kMostScans = 100;
// Of the coefficients that a progressive decoder keeps: those of three channels of kMaxPixels fit.
constexpr long kMostCodecBytes = 1L << 30;

void check_scans(j_common_ptr codec) {
  const int scan = reinterpret_cast<j_decompress_ptr>(codec)->input_scan_number;
  if (scan <= kMostScans) return;
  std::snprintf(reinterpret_cast<JpegErrors*>(codec->err)->message, JMSG_LENGTH_MAX,
                "it has more than %d scans", kMostScans);
  std::longjmp(reinterpret_cast<JpegErrors*>(codec->err)->jump, 1);
}

jpeg_error_mgr* prepare(JpegErrors& errors) {
  jpeg_std_error(&errors.base);
  errors.base.error_exit = on_error;
  errors.base.emit_message = on_message;
  return &errors.base;
}

template <class Step>
bool attempt(JpegErrors& errors, const Step& step) {
  if (setjmp(errors.jump) != 0) return false;
  step();
  return true;
}

struct JpegDecoder {
  jpeg_decompress_struct codec{};
  JpegErrors errors{};
  jpeg_progress_mgr progress{};
  JpegDecoder() { codec.err = prepare(errors); }
  ~JpegDecoder() { jpeg_destroy_decompress(&codec); }  // also for a codec that was never created (zeros)
};

struct JpegEncoder {
  jpeg_compress_struct codec{};
  JpegErrors errors{};
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  JpegEncoder() { codec.err = prepare(errors); }
  ~JpegEncoder() {
    jpeg_destroy_compress(&codec);
    std::free(bytes);
  }
};

// Converts printing inks to RGB, rounded as Pillow rounds. Adobe's programs, which write nearly all such files,
// store inks inverted.
void cmyk_to_rgb(const unsigned char* cmyk, unsigned char* rgb, int64_t pixels, bool inverted) {
  const int flip = inverted ? 255 : 0;
  for (int64_t i = 0; i < pixels; ++i) {
    const int light = 255 - (cmyk[4 * i + 3] ^ flip);  // that black leaves
    for (int channel = 0; channel < 3; ++channel) {
      const int ink = cmyk[4 * i + channel] ^ flip;
      rgb[3 * i + channel] = static_cast<unsigned char>(light - (2 * ink * light + 255) / 510);
    }
  }
}

/// Returns the orientation of the first Exif segment among the saved markers; 1 (upright) if there is none.
int stored_orientation(const jpeg_decompress_struct& codec) {
  for (const jpeg_marker_struct* marker = codec.marker_list; marker != nullptr; marker = marker->next) {
    const std::string_view segment(reinterpret_cast<const char*>(marker->data), marker->data_length);
    if (segment.starts_with("Exif")) return exif_orientation(segment);
  }
  return 1;
}

/// Calls `step`, which calls libjpeg, and throws what libjpeg reports.
template <class Step>
void run(JpegDecoder& decoder, const std::filesystem::path& path, const Step& step) {
  if (!attempt(decoder.errors, step)) fail_to_read(path, decoder.errors.message);
}

/// Reads the header and checks the size that it claims.
void read_header(JpegDecoder& decoder, std::string_view bytes, const std::filesystem::path& path,
                 Orientation orientation) {
  auto& codec = decoder.codec;
  run(decoder, path, [&] {
    jpeg_create_decompress(&codec);
    codec.mem->max_memory_to_use = kMostCodecBytes;
    decoder.progress.progress_monitor = check_scans;
    codec.progress = &decoder.progress;
    jpeg_mem_src(&codec, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    if (orientation == Orientation::kUpright) jpeg_save_markers(&codec, kExifMarker, 0xFFFF);
    jpeg_read_header(&codec, TRUE);
  });
  check_pixels(path, codec.image_height, codec.image_width);
  // A block of 8 x 8 pixels has at least one bit in a Huffman code. So a header cannot claim what the file
  // cannot hold.
  constexpr uint64_t kMostPixelsPerByte = 1024;  // twice that, for blocks at the border
  if (!codec.arith_code &&
      uint64_t{codec.image_height} * codec.image_width > kMostPixelsPerByte * bytes.size() + 65536)
    fail_to_read(path, "its header says " + std::to_string(codec.image_width) + "x" +
                           std::to_string(codec.image_height) + " pixels, which " +
                           std::to_string(bytes.size()) + " bytes cannot hold: it is truncated");
}

ImageSize turned(ImageSize stored, int orientation) {
  return orientation >= 5 ? ImageSize{stored.width, stored.height} : stored;
}

}  // namespace

JpegHeader header_of_jpeg(std::string_view bytes, const std::filesystem::path& path,
                          Orientation orientation) {
  JpegDecoder decoder;
  read_header(decoder, bytes, path, orientation);
  const int stored = stored_orientation(decoder.codec);
  return {turned({decoder.codec.image_height, decoder.codec.image_width}, stored), stored};
}

at::Tensor decode_jpeg(std::string_view bytes, const std::filesystem::path& path, Orientation orientation,
                       const ImagePart* part) {
  JpegDecoder decoder;
  auto& codec = decoder.codec;
  read_header(decoder, bytes, path, orientation);
  const int turn = stored_orientation(codec);
  const bool cmyk = codec.jpeg_color_space == JCS_CMYK || codec.jpeg_color_space == JCS_YCCK;
  codec.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  const int eighths = part != nullptr ? part->eighths : 8;
  const ImageSize stored = reduced_size({codec.image_height, codec.image_width}, eighths);
  codec.scale_num = static_cast<unsigned>(eighths);
  codec.scale_denom = 8;
  const ImagePart window = part != nullptr ? as_stored(*part, stored, turn)
                                           : ImagePart{eighths, 0, 0, stored.height, stored.width};

  at::Tensor image = at::empty({window.height, window.width, 3}, at::kByte);
  auto* pixels = image.mutable_data_ptr<uint8_t>();
  const int64_t channels = cmyk ? 4 : 3;
  std::vector<unsigned char> line(stored.width * channels);  // (width, channels) one row
  std::vector<unsigned char> rgb(cmyk ? stored.width * 3 : 0);
  run(decoder, path, [&] {
    jpeg_start_decompress(&codec);
    const auto next_row = [&] {
      JSAMPROW row = line.data();
      jpeg_read_scanlines(&codec, &row, 1);
    };
    const auto skip = [&](int64_t rows) {
      if (rows > 0) jpeg_skip_scanlines(&codec, static_cast<JDIMENSION>(rows));
    };
    skip(window.top);
    for (int64_t y = 0; y < window.height; ++y) {
      next_row();
      if (cmyk) cmyk_to_rgb(line.data(), rgb.data(), stored.width, codec.saw_Adobe_marker);
      const auto* from = (cmyk ? rgb.data() : line.data()) + 3 * window.left;
      std::memcpy(pixels + y * window.width * 3, from, 3 * window.width);
    }
    // libjpeg would not read what is skipped up to the end, so the last row is read.
    const int64_t below = stored.height - window.top - window.height;
    skip(below - 1);
    if (below > 0) next_row();
    jpeg_finish_decompress(&codec);
  });
  return upright(image, turn);
}

std::string encode_jpeg(const at::Tensor& image, int quality) {
  JpegEncoder encoder;
  auto& codec = encoder.codec;
  const int64_t height = image.size(0), width = image.size(1);
  const auto* pixels = image.const_data_ptr<uint8_t>();
  const bool succeeded = attempt(encoder.errors, [&] {
    jpeg_create_compress(&codec);
    jpeg_mem_dest(&codec, &encoder.bytes, &encoder.size);
    codec.image_height = static_cast<JDIMENSION>(height);
    codec.image_width = static_cast<JDIMENSION>(width);
    codec.input_components = 3;
    codec.in_color_space = JCS_RGB;
    jpeg_set_defaults(&codec);
    jpeg_set_quality(&codec, quality, TRUE);
    for (int i = 0; i < 3; ++i)
      codec.comp_info[i].h_samp_factor = codec.comp_info[i].v_samp_factor = 1;  // 4:4:4
    jpeg_start_compress(&codec, TRUE);
    while (codec.next_scanline < codec.image_height) {
      auto* row = const_cast<JSAMPROW>(pixels + static_cast<int64_t>(codec.next_scanline) * width * 3);
      jpeg_write_scanlines(&codec, &row, 1);
    }
    jpeg_finish_compress(&codec);
  });
  if (!succeeded) throw std::invalid_argument(std::string("cannot encode a JPEG: ") + encoder.errors.message);
  return {reinterpret_cast<const char*>(encoder.bytes), encoder.size};
}

}  // namespace palimpsest::io::codecs
