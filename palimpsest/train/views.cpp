#include "palimpsest/train/views.h"

#include "palimpsest/data/transforms.h"
#include "palimpsest/train/common/require.h"
#include "palimpsest/train/common/sampling.h"
#include "palimpsest/train/common/send.h"
#include "palimpsest/train/metrics.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace palimpsest::train {
namespace {

constexpr double kLargestScale = 4;
constexpr std::size_t kMostScales = 64;
constexpr int64_t kBandValues = 1 << 20;  // 4 MiB in f32: what the next operator reads is still in the cache

/// One window along one axis.
struct Piece {
  int64_t first, size;        // pixels of the scaled image
  int64_t begin, end;         // pixels of the image that lie in it
  std::vector<double> share;  // (end - begin) of the window in the score of each pixel
  // Where the image is, once the window has logits:
  Taps reads{};         // of the logits at the pixels [begin, end)
  at::Tensor shares{};  // `share` as a tensor
};

/// One axis of the image at one scale.
struct Axis {
  int64_t size, scaled;
  std::vector<Piece> pieces;

  /// Returns where a pixel of the image lies in the scaled image, in pixels.
  double scaled_position(int64_t pixel) const {
    return (static_cast<double>(pixel) + 0.5) * static_cast<double>(scaled) / static_cast<double>(size);
  }
  /// Returns where a pixel of the scaled image lies in the image.
  double position(int64_t pixel) const {
    return (static_cast<double>(pixel) + 0.5) * static_cast<double>(size) / static_cast<double>(scaled);
  }
};

int64_t stride_of(const ViewOptions& options) {
  return options.stride > 0 ? options.stride : (2 * options.window + 2) / 3;
}

Axis split(int64_t size, double scale, const ViewOptions& options) {
  Axis axis{size, std::llround(static_cast<double>(size) * scale), {}};
  if (axis.scaled == 0) return axis;
  const int64_t window = options.window > 0 ? std::min(options.window, axis.scaled) : axis.scaled;
  const int64_t stride = options.window > 0 ? stride_of(options) : window;
  std::vector<int64_t> firsts;
  for (int64_t at = 0; at < axis.scaled - window; at += stride) firsts.push_back(at);
  firsts.push_back(axis.scaled - window);
  const auto length = static_cast<double>(window);
  std::vector<double> sums(size, 0);
  for (std::size_t k = 0; k < firsts.size(); ++k) {
    // The last window overlaps more than the others.
    const auto overlap = [&](std::size_t left) {
      return static_cast<double>(firsts[left] + window - firsts[left + 1]);
    };
    const double before = k > 0 ? overlap(k - 1) : 0, after = k + 1 < firsts.size() ? overlap(k) : 0;
    Piece piece{firsts[k], window, size, 0, {}};
    for (int64_t i = 0; i < size; ++i) {
      const double offset = axis.scaled_position(i) - static_cast<double>(firsts[k]);
      if (offset < 0 || offset >= length) continue;
      piece.begin = std::min(piece.begin, i);
      piece.end = i + 1;
      double share = 1;
      if (before > 0) share = std::min(share, offset / before);
      if (after > 0) share = std::min(share, (length - offset) / after);
      piece.share.push_back(share);
      sums[i] += share;
    }
    if (piece.begin < piece.end) axis.pieces.push_back(std::move(piece));
  }
  for (Piece& piece : axis.pieces)
    for (int64_t i = piece.begin; i < piece.end; ++i) piece.share[i - piece.begin] /= sums[i];
  return axis;
}

/// The image at one scale: its windows, and the logits of those that are in use.
class ScaledImage {
 public:
  ScaledImage(const Network& network, const at::Tensor& image, double scale, const ViewOptions& options,
              const TensorFormat& format)
      : network_(network),
        image_(image),
        format_(format),
        flip_(options.flip),
        rows_(split(image.size(1), scale, options)),
        columns_(split(image.size(2), scale, options)),
        logits_(rows_.pieces.size() * columns_.pieces.size()) {
    require(
        rows_.scaled > 0 && columns_.scaled > 0,
        fmt::format("scale {:g} leaves no pixel of an image of {} x {} pixels: the smallest scale must be at "
                    "least {:g}",
                    scale, image.size(2), image.size(1),
                    data::least_scale(std::min(image.size(1), image.size(2)))));
  }

  int64_t classes() { return logits(0, 0).front().size(2); }

  /// Adds the probabilities of the image rows [top, top + rows), times `share`, to `sum` (rows, W, C).
  void add(int64_t top, double share, const at::Tensor& sum) {
    const int64_t bottom = top + sum.size(0);
    for (std::size_t r = 0; r < rows_.pieces.size(); ++r) {
      const Piece& row = rows_.pieces[r];
      const int64_t begin = std::max(top, row.begin), end = std::min(bottom, row.end);
      for (std::size_t c = 0; begin < end && c < columns_.pieces.size(); ++c)
        for (const at::Tensor& logits : logits(r, c)) add_window(r, c, logits, begin, end, top, share, sum);
      if (row.end <= bottom)
        for (std::size_t c = 0; c < columns_.pieces.size(); ++c) held(r, c).clear();
    }
  }

 private:
  std::vector<at::Tensor>& held(std::size_t r, std::size_t c) {
    return logits_[r * columns_.pieces.size() + c];
  }

  /// Returns the logits (h, w, C) of a window and, with flip, of its mirror image. The classes come last: pixels
  /// are then copied as blocks where the logits are sampled.
  const std::vector<at::Tensor>& logits(std::size_t r, std::size_t c) {
    std::vector<at::Tensor>& result = held(r, c);
    if (!result.empty()) return result;
    const at::Tensor view = window(rows_.pieces[r], columns_.pieces[c]).unsqueeze(0);
    const auto logits_of = [&](const at::Tensor& images) {
      return coarse_logits(network_, format_.convert(images), format_.precision)[0].permute({1, 2, 0});
    };
    result.push_back(logits_of(view).contiguous());
    prepare(rows_, rows_.pieces[r], result[0], 0);
    prepare(columns_, columns_.pieces[c], result[0], 1);
    if (flip_) result.push_back(logits_of(view.flip({3})).flip({1}).contiguous());
    return result;
  }

  /// Returns the pixels of a window of the scaled image, (3, h, w).
  at::Tensor window(const Piece& row, const Piece& column) const {
    if (rows_.scaled == rows_.size && columns_.scaled == columns_.size)
      return image_.narrow(1, row.first, row.size).narrow(2, column.first, column.size);
    return sample(image_, 1, taps_of_pixels(rows_, row), taps_of_pixels(columns_, column));
  }

  Taps taps_of_pixels(const Axis& axis, const Piece& piece) const {
    std::vector<double> positions(piece.size);
    for (int64_t i = 0; i < piece.size; ++i) positions[i] = axis.position(piece.first + i);
    const double shrinks = static_cast<double>(axis.size) / static_cast<double>(axis.scaled);
    return make_taps(positions, axis.size, std::max(shrinks, 1.0), image_);
  }

  /// Finds what reads the logits of a window along their dimension `dim` at the image's pixels. Once per piece and
  /// not per band: each is a copy to the device.
  static void prepare(const Axis& axis, Piece& piece, const at::Tensor& logits, int64_t dim) {
    if (piece.shares.defined()) return;
    const int64_t count = logits.size(dim);
    std::vector<double> positions(piece.end - piece.begin);
    const double ratio = static_cast<double>(count) / static_cast<double>(piece.size);
    for (int64_t i = piece.begin; i < piece.end; ++i)
      positions[i - piece.begin] = (axis.scaled_position(i) - static_cast<double>(piece.first)) * ratio;
    piece.reads = make_taps(positions, count, /*reach=*/1, logits);
    piece.shares = send(at::tensor(piece.share, at::kDouble), logits.device());
  }

  void add_window(std::size_t r, std::size_t c, const at::Tensor& logits, int64_t begin, int64_t end,
                  int64_t top, double share, const at::Tensor& sum) const {
    const Piece &row = rows_.pieces[r], &column = columns_.pieces[c];
    const int64_t first = begin - row.begin, count = end - begin;
    at::Tensor scores = sample(logits, 0, row.reads.narrow(first, count), column.reads);
    scores = scores.softmax(2);
    if (rows_.pieces.size() * columns_.pieces.size() == 1) {
      sum.add_(scores, share);
      return;
    }
    scores.mul_(row.shares.narrow(0, first, count).mul(share).to(scores.scalar_type()).view({-1, 1, 1}));
    scores.mul_(column.shares.to(scores.scalar_type()).view({-1, 1}));
    sum.narrow(0, begin - top, end - begin).narrow(1, column.begin, column.end - column.begin).add_(scores);
  }

  const Network& network_;
  const at::Tensor& image_;
  const TensorFormat& format_;
  bool flip_;
  Axis rows_, columns_;
  std::vector<std::vector<at::Tensor>> logits_;  // (windows, row by row): none, or one or two per window
};

}  // namespace

bool ViewOptions::is_single() const {
  return scales.size() == 1 && scales[0] == 1 && !flip && window == 0;
}

void check_views(const ViewOptions& options) {
  require(!options.scales.empty(), "the scales of an evaluation must be at least one number, got none");
  require(options.scales.size() <= kMostScales,
          fmt::format("an evaluation may have {} scales, got {}", kMostScales, options.scales.size()));
  for (const double scale : options.scales)
    require(scale > 0 && scale <= kLargestScale,
            fmt::format("each scale of an evaluation must be in (0, {:g}], got {:g}", kLargestScale, scale));
  require(options.window >= 0, fmt::format("the window must be at least 0 pixels, got {}", options.window));
  require(options.stride >= 0, fmt::format("the stride must be at least 0 pixels, got {}", options.stride));
  require(options.window > 0 || options.stride == 0,
          fmt::format("a stride needs a window, got stride {} and no window", options.stride));
  require(
      options.stride <= options.window,
      fmt::format("the stride must be at most the window, or pixels between windows would have no score; got "
                  "stride {} and window {}",
                  options.stride, options.window));
}

void for_each_band(const Network& network, const at::Tensor& image, const ViewOptions& options,
                   const TensorFormat& format, const BandReceiver& receive) {
  check_views(options);
  TORCH_CHECK(image.dim() == 3, "[views] needs an image (3, H, W), got ", image.sizes());
  std::vector<ScaledImage> scaled;
  scaled.reserve(options.scales.size());
  for (const double scale : options.scales) scaled.emplace_back(network, image, scale, options, format);
  const int64_t height = image.size(1), width = image.size(2), classes = scaled.front().classes();
  const int64_t rows = std::clamp<int64_t>(kBandValues / (classes * width), 1, height);
  const double share = 1.0 / static_cast<double>(scaled.size() * (options.flip ? 2 : 1));
  for (int64_t top = 0; top < height; top += rows) {
    const at::Tensor sum = at::zeros({std::min(rows, height - top), width, classes}, image.options());
    for (ScaledImage& one : scaled) one.add(top, share, sum);
    receive(top, sum.permute({2, 0, 1}));
  }
}

at::Tensor ten_crop_logits(const Network& network, const at::Tensor& images, int64_t side,
                           const TensorFormat& format) {
  const int64_t height = images.size(2), width = images.size(3);
  require(side > 0, fmt::format("ten crops need a side of at least 1 pixel, got {}", side));
  require(
      std::min(height, width) >= side,
      fmt::format("ten crops of {0} x {0} pixels need images that are at least as large, got {1} x {2}: set "
                  "a short side of at least {0}",
                  side, width, height));
  const int64_t bottom = height - side, right = width - side;
  const std::pair<int64_t, int64_t> places[] = {
      {0, 0}, {0, right}, {bottom, 0}, {bottom, right}, {data::middle_of(bottom), data::middle_of(right)}};
  at::Tensor sum;
  for (const at::Tensor& view : {images, images.flip({3})})
    for (const auto& [y, x] : places) {
      const at::Tensor crop = format.convert(view.narrow(2, y, side).narrow(3, x, side));
      const at::Tensor logits = forward(network, crop, format.precision);
      sum = sum.defined() ? sum.add_(logits) : logits.clone();
    }
  return sum.div_(10);
}

}  // namespace palimpsest::train
