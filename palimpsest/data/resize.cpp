#include "palimpsest/data/resize.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>
#include <stdexcept>

// The loader is compiled once for the oldest processor, and these two loops take as long as the decoding of a
// JPEG there. The sanitizers' runtime is not ready when the choice between clones is made.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PALIMPSEST_RESIZE_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define PALIMPSEST_RESIZE_CLONES
#endif

namespace palimpsest::data {
namespace {

using Bytes4 = uint8_t __attribute__((vector_size(4)));
using Levels4 = int32_t __attribute__((vector_size(16)));

constexpr int32_t kHalf = 1 << (ResizeAxis::kWeightBits - 1);
constexpr int64_t kBlock = 64;  // values of a row that are summed at a time

double weight_at(double x, Filter filter) {
  x = std::abs(x);
  if (filter == Filter::kBilinear) return x < 1 ? 1 - x : 0;
  constexpr double a = -0.5;
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

uint8_t level(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> ResizeAxis::kWeightBits, 0, 255));
}

/// Resizes one row of RGB pixels. The fourth byte of each load is not used, so a byte must follow the row.
PALIMPSEST_RESIZE_CLONES
void resize_row(const uint8_t* row, const ResizeAxis& columns, uint8_t* out) {
  for (int64_t x = 0; x < columns.size(); ++x) {
    const uint8_t* pixel = row + 3 * columns.first(x);
    const int32_t* weights = columns.weights(x);
    const int64_t taps = columns.taps(x);
    Levels4 sum{kHalf, kHalf, kHalf, kHalf};
    for (int64_t t = 0; t < taps; ++t) {
      Bytes4 rgb;
      std::memcpy(&rgb, pixel + 3 * t, 4);
      sum += __builtin_convertvector(rgb, Levels4) * weights[t];
    }
    for (int c = 0; c < 3; ++c) out[3 * x + c] = level(sum[c]);
  }
}

/// Sums `taps` rows, which are `pitch` bytes apart, to one of `blocks` * kBlock values.
PALIMPSEST_RESIZE_CLONES
void mix_rows(const uint8_t* rows, int64_t pitch, const int32_t* weights, int64_t taps, int64_t blocks,
              uint8_t* out) {
  for (int64_t b = 0; b < blocks; ++b) {
    int32_t sum[kBlock];
    for (int32_t& value : sum) value = kHalf;
    for (int64_t t = 0; t < taps; ++t) {
      const uint8_t* from = rows + t * pitch + b * kBlock;
      for (int64_t i = 0; i < kBlock; ++i) sum[i] += from[i] * weights[t];
    }
    for (int64_t i = 0; i < kBlock; ++i) {
      const int32_t value = sum[i] >> ResizeAxis::kWeightBits;
      out[b * kBlock + i] = static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
    }
  }
}

}  // namespace

ResizeAxis::ResizeAxis(const Mapping& mapping, Filter filter) {
  const PixelRange visible = mapping.visible, wanted = mapping.wanted;
  const double scale = (mapping.high - mapping.low) / static_cast<double>(mapping.size);
  const double widened = std::max(scale, 1.0);
  const double reach = (filter == Filter::kBilinear ? 1 : 2) * widened;
  // Positions count from visible.begin, as Pillow's do in an image that was cut out before.
  const double low = mapping.low - static_cast<double>(visible.begin);
  most_taps_ = static_cast<int64_t>(std::ceil(reach)) * 2 + 1;
  first_.resize(wanted.size());
  count_.resize(wanted.size());
  weights_.assign(wanted.size() * most_taps_, 0);
  source_ = {visible.end, visible.begin};
  std::vector<double> exact(most_taps_);
  for (int64_t i = 0; i < wanted.size(); ++i) {
    const double centre = low + (static_cast<double>(wanted.begin + i) + 0.5) * scale;
    const auto begin = std::max<int64_t>(0, static_cast<int64_t>(std::trunc(centre - reach + 0.5)));
    const auto end = std::min(visible.size(), static_cast<int64_t>(std::trunc(centre + reach + 0.5)));
    double sum = 0;
    for (int64_t t = begin; t < end; ++t)
      sum += exact[t - begin] = weight_at((static_cast<double>(t) - centre + 0.5) * (1 / widened), filter);
    int32_t* weights = weights_.data() + i * most_taps_;
    for (int64_t t = 0; t < end - begin; ++t) {
      const double share = (sum != 0 ? exact[t] / sum : exact[t]) * (1 << kWeightBits);
      weights[t] = static_cast<int32_t>(share < 0 ? share - 0.5 : share + 0.5);
    }
    // A weight of 0 needs no pixel: a copy of a window reads the window alone.
    int64_t from = begin, to = end;
    while (to - from > 1 && weights[to - begin - 1] == 0) --to;
    while (to - from > 1 && weights[from - begin] == 0) ++from;
    std::copy(weights + (from - begin), weights + (to - begin), weights);
    first_[i] = visible.begin + from;
    count_[i] = to - from;
    source_ = {std::min(source_.begin, first_[i]), std::max(source_.end, first_[i] + count_[i])};
    copies_ = copies_ && count_[i] == 1 && first_[i] == first_[0] + i;
  }
}

at::Tensor resize(const at::Tensor& part, const ResizeAxis& rows, const ResizeAxis& columns) {
  const int64_t height = rows.source().size(), width = columns.source().size();
  if (part.scalar_type() != at::kByte || part.sizes() != at::IntArrayRef({height, width, 3}) ||
      !part.is_contiguous()) {
    std::ostringstream message;
    message << "resize needs a contiguous u8 picture of (" << height << ", " << width << ", 3), got "
            << part.scalar_type() << " " << part.sizes();
    throw std::invalid_argument(message.str());
  }
  const int64_t out_height = rows.size(), out_width = columns.size();
  const int64_t values = 3 * out_width, blocks = (values + kBlock - 1) / kBlock, pitch = blocks * kBlock;
  const auto* source = part.const_data_ptr<uint8_t>();
  std::vector<uint8_t> narrow(height * pitch);  // (height, pitch) after the pass over the columns
  if (columns.copies()) {
    for (int64_t y = 0; y < height; ++y)
      std::copy_n(source + y * 3 * width, values, narrow.data() + y * pitch);
  } else {
    std::vector<uint8_t> row(3 * width + 1);
    for (int64_t y = 0; y < height; ++y) {
      std::copy_n(source + y * 3 * width, 3 * width, row.data());
      resize_row(row.data(), columns, narrow.data() + y * pitch);
    }
  }
  at::Tensor result = at::empty({out_height, out_width, 3}, at::kByte);
  auto* out = result.mutable_data_ptr<uint8_t>();
  std::vector<uint8_t> mixed(pitch);  // one row of the result
  for (int64_t y = 0; y < out_height; ++y) {
    const uint8_t* from = narrow.data() + rows.first(y) * pitch;
    if (!rows.copies()) {
      mix_rows(from, pitch, rows.weights(y), rows.taps(y), blocks, mixed.data());
      from = mixed.data();
    }
    std::copy_n(from, values, out + y * values);
  }
  return result;
}

at::Tensor resize(const at::Tensor& image, int64_t height, int64_t width, Filter filter) {
  const auto axis = [&](int64_t source, int64_t size) {
    return ResizeAxis({{0, source}, 0, static_cast<double>(source), size, {0, size}}, filter);
  };
  const ResizeAxis rows = axis(image.size(0), height), columns = axis(image.size(1), width);
  // Trimming pixels without weight can leave a margin.
  const PixelRange y = rows.source(), x = columns.source();
  return resize(image.slice(0, y.begin, y.end).slice(1, x.begin, x.end).contiguous(), rows, columns);
}

}  // namespace palimpsest::data
