#include "palimpsest/data/transforms.h"

#include "palimpsest/base/error.h"
#include "palimpsest/io/image.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <vector>

namespace palimpsest::data {
namespace {

void require(bool condition, const std::string& what, double got) {
  if (condition) return;
  std::ostringstream message;
  message << "transform: " << what << ", got " << got;
  throw Error(ErrorKind::kUsage, message.str());
}

int64_t scaled(int64_t size, double scale) {
  return std::max<int64_t>(1, std::llround(static_cast<double>(size) * scale));
}

std::string size_text(int64_t height, int64_t width) {
  return std::to_string(width) + "x" + std::to_string(height);
}

// Returns the first pixel of a window of `crop` on an axis of `size`. The window lies in the image if it
// fits; otherwise the image lies in the window.
int64_t place(int64_t size, int64_t crop, double uniform, bool training) {
  const int64_t room = size - crop;
  if (!training)
    return room / 2 - (room < 0 && room % 2 != 0);  // floor: never less padding before than after
  const auto steps = static_cast<int64_t>(uniform * static_cast<double>(std::abs(room) + 1));
  return room >= 0 ? steps : -steps;
}

/// The source of each output pixel along one axis. Outputs outside [begin, end) are padding.
struct Axis {
  int64_t begin = 0, end = 0;
  std::vector<int64_t> low, high;  // neighbours; equal at the image's edge
  std::vector<float> weight;       // of `high`

  Axis(int64_t source, int64_t size, int64_t first, int64_t count, bool flip)
      : low(count), high(count), weight(count) {
    const double ratio = static_cast<double>(source) / static_cast<double>(size);
    begin = count;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = first + (flip ? count - 1 - i : i);
      if (at < 0 || at >= size) continue;
      begin = std::min(begin, i);
      end = i + 1;
      const double centre =
          std::clamp((static_cast<double>(at) + 0.5) * ratio - 0.5, 0.0, static_cast<double>(source - 1));
      low[i] = static_cast<int64_t>(centre);
      high[i] = std::min(low[i] + 1, source - 1);
      weight[i] = static_cast<float>(centre - static_cast<double>(low[i]));
    }
  }

  int64_t nearest(int64_t i) const { return weight[i] < 0.5f ? low[i] : high[i]; }
};

}  // namespace

void check_transform(const TransformOptions& options) {
  require(options.crop >= 0, "the crop must be at least 0 pixels", static_cast<double>(options.crop));
  require(options.scale_min > 0 && std::isfinite(options.scale_min), "the smallest scale must be above 0",
          options.scale_min);
  require(options.scale_max >= options.scale_min && options.scale_max <= 100,
          "the largest scale must be between the smallest and 100", options.scale_max);
  require(options.flip_probability >= 0 && options.flip_probability <= 1,
          "the flip probability must be in [0, 1]", options.flip_probability);
  for (int c = 0; c < 3; ++c) {
    require(std::isfinite(options.mean[c]), "each mean must be a number", options.mean[c]);
    require(options.std[c] > 0 && std::isfinite(options.std[c]), "each standard deviation must be above 0",
            options.std[c]);
  }
}

View choose_view(int64_t height, int64_t width, const TransformOptions& options, Random& random,
                 const std::string& name) {
  const double scale_at = random.uniform(), top_at = random.uniform(), left_at = random.uniform(),
               flip_at = random.uniform();
  const bool training = options.training;
  const double smallest = training ? options.scale_min : 1;
  const int64_t crop = options.crop, least_height = scaled(height, smallest),
                least_width = scaled(width, smallest);
  constexpr int64_t kMostPadding = 8, kAlways = 1024;  // times the image's side; pixels
  if (crop > kAlways && crop > kMostPadding * std::max(least_height, least_width))
    throw Error(ErrorKind::kUsage, "a crop of " + size_text(crop, crop) +
                                       " would be padding but for a corner: " + name + " has " +
                                       size_text(height, width) + " pixels; set a crop of at most " +
                                       std::to_string(kMostPadding * std::max(least_height, least_width)));
  if (crop > 0 && !options.pad && crop > std::min(least_height, least_width)) {
    std::ostringstream message;
    message << "a crop of " << size_text(crop, crop) << " does not fit into " << name << ", which has "
            << size_text(height, width) << " pixels";
    if (smallest != 1)
      message << " (" << size_text(least_height, least_width) << " at the scale " << smallest << ")";
    message << ": set pad, or a crop of at most " << std::min(least_height, least_width);
    throw Error(ErrorKind::kUsage, message.str());
  }
  const double scale = training ? options.scale_min + (options.scale_max - options.scale_min) * scale_at : 1;
  View view{scaled(height, scale),
            scaled(width, scale),
            0,
            0,
            crop,
            crop,
            training && flip_at < options.flip_probability};
  if (crop == 0) {
    view.height = view.scaled_height;
    view.width = view.scaled_width;
  } else {
    view.top = place(view.scaled_height, crop, top_at, training);
    view.left = place(view.scaled_width, crop, left_at, training);
  }
  return view;
}

at::Tensor read_image(const std::filesystem::path& path, const TransformOptions& options) {
  return io::read_image(path,
                        options.exif_orientation ? io::Orientation::kUpright : io::Orientation::kAsStored);
}

at::Tensor view_image(const at::Tensor& image, const View& view, const TransformOptions& options) {
  const int64_t width = image.size(1);
  const Axis rows(image.size(0), view.scaled_height, view.top, view.height, false);
  const Axis columns(width, view.scaled_width, view.left, view.width, view.flip);
  float factor[3], offset[3];
  for (int c = 0; c < 3; ++c) {
    factor[c] = static_cast<float>(1 / (255 * options.std[c]));
    offset[c] = static_cast<float>(-options.mean[c] / options.std[c]);
  }
  const bool covered =
      rows.begin == 0 && rows.end == view.height && columns.begin == 0 && columns.end == view.width;
  at::Tensor result = covered ? at::empty({3, view.height, view.width}, at::kFloat)
                              : at::full({3, view.height, view.width}, 0, at::kFloat);
  if (columns.begin >= columns.end) return result;

  const auto [first, last] = std::minmax(columns.low[columns.begin], columns.high[columns.end - 1]);
  const int64_t from = 3 * std::min(first, columns.low[columns.end - 1]);
  const int64_t to = 3 * (std::max(last, columns.high[columns.begin]) + 1);
  const auto* source = image.const_data_ptr<uint8_t>();  // (H, W, 3)
  auto* out = result.mutable_data_ptr<float>();          // (3, h, w)
  std::vector<float> mixed(3 * width);                   // (W, 3) one row between two of the image
  for (int64_t y = rows.begin; y < rows.end; ++y) {
    const uint8_t* upper = source + rows.low[y] * width * 3;
    const uint8_t* lower = source + rows.high[y] * width * 3;
    const float down = rows.weight[y];
    for (int64_t i = from; i < to; ++i) {
      const float above = upper[i], below = lower[i];
      mixed[i] = above + (below - above) * down;
    }
    for (int64_t c = 0; c < 3; ++c) {
      float* to_row = out + (c * view.height + y) * view.width;
      for (int64_t x = columns.begin; x < columns.end; ++x) {
        const float left = mixed[3 * columns.low[x] + c], right = mixed[3 * columns.high[x] + c];
        to_row[x] = (left + (right - left) * columns.weight[x]) * factor[c] + offset[c];
      }
    }
  }
  return result;
}

at::Tensor view_label(const at::Tensor& label, const View& view, int64_t ignore_id) {
  const Axis rows(label.size(0), view.scaled_height, view.top, view.height, false);
  const Axis columns(label.size(1), view.scaled_width, view.left, view.width, view.flip);
  at::Tensor result = at::full({view.height, view.width}, ignore_id, at::kLong);
  const auto* source = label.const_data_ptr<uint8_t>();
  auto* out = result.mutable_data_ptr<int64_t>();
  for (int64_t y = rows.begin; y < rows.end; ++y) {
    const uint8_t* row = source + rows.nearest(y) * label.size(1);
    for (int64_t x = columns.begin; x < columns.end; ++x) out[y * view.width + x] = row[columns.nearest(x)];
  }
  return result;
}

}  // namespace palimpsest::data
