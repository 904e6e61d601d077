#include "palimpsest/data/transforms.h"

#include "palimpsest/base/error.h"
#include "palimpsest/data/dataset.h"
#include "palimpsest/io/image.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <vector>

namespace palimpsest::data {
namespace {

constexpr double kLeastScale = 0.01;
constexpr int64_t kMostShortSide = 1 << 20;  // times the 160 million pixels of an image: far below 2^63

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
// fits; otherwise the image lies in the window. A window that fits shows the pixel `focus`, if it is not -1.
int64_t place(int64_t size, int64_t crop, double uniform, bool training, int64_t focus) {
  const int64_t room = size - crop;
  if (training && focus >= 0 && room >= 0) {
    const int64_t first = std::max<int64_t>(0, focus - crop + 1), last = std::min(room, focus);
    return first + static_cast<int64_t>(uniform * static_cast<double>(last - first + 1));
  }
  if (!training) return middle_of(room);
  const auto steps = static_cast<int64_t>(uniform * static_cast<double>(std::abs(room) + 1));
  return room >= 0 ? steps : -steps;
}

/// The source of each output pixel along one axis. Outputs outside [begin, end) are padding.
struct Axis {
  int64_t begin = 0, end = 0;
  std::vector<int64_t> low, high;  // neighbours; equal at the image's edge
  std::vector<float> weight;       // of `high`

  /// The pixels [from, from + source) of the image are scaled to `size`.
  Axis(int64_t from, int64_t source, int64_t size, int64_t first, int64_t count, bool flip)
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
      low[i] += from;
      high[i] += from;
    }
  }

  int64_t nearest(int64_t i) const { return weight[i] < 0.5f ? low[i] : high[i]; }
};

Axis rows_of(const View& view, const at::Tensor& image) {
  const bool cut = view.cut_height > 0;
  return {cut ? view.cut_top : 0,
          cut ? view.cut_height : image.size(0),
          view.scaled_height,
          view.top,
          view.height,
          false};
}

Axis columns_of(const View& view, const at::Tensor& image) {
  const bool cut = view.cut_height > 0;
  return {cut ? view.cut_left : 0,
          cut ? view.cut_width : image.size(1),
          view.scaled_width,
          view.left,
          view.width,
          view.flip};
}

struct Size {
  int64_t height, width;
};

/// Returns the size before the random scale. The longer side is rounded down, as torchvision does.
Size base_size(int64_t height, int64_t width, int64_t short_side) {
  if (short_side == 0) return {height, width};
  if (height < width) return {short_side, std::max<int64_t>(1, short_side * width / height)};
  return {std::max<int64_t>(1, short_side * height / width), short_side};
}

/// Returns the scaled pixel that shows the source pixel `at`, or -1 for no pixel.
int64_t scaled_pixel(int64_t at, int64_t source, int64_t size) {
  if (at < 0) return -1;
  return std::min(size - 1, static_cast<int64_t>((static_cast<double>(at) + 0.5) * static_cast<double>(size) /
                                                 static_cast<double>(source)));
}

/// Cuts out a rectangle of random area and aspect. A rectangle that does not fit is drawn again, up to ten
/// times; then it is the largest one in the middle whose aspect is allowed.
void cut_area(View& view, Size image, const TransformOptions& options, Random& random, const Pixel* focus) {
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  const double log_aspect = std::log(options.aspect_max);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = height * width * random.uniform(options.area_min, options.area_max);
    const double aspect = std::exp(random.uniform(-log_aspect, log_aspect));
    view.cut_height = std::max<int64_t>(1, std::llround(std::sqrt(area / aspect)));
    view.cut_width = std::max<int64_t>(1, std::llround(std::sqrt(area * aspect)));
    if (view.cut_height > image.height || view.cut_width > image.width) continue;
    view.cut_top = place(image.height, view.cut_height, random.uniform(), true, focus ? focus->row : -1);
    view.cut_left = place(image.width, view.cut_width, random.uniform(), true, focus ? focus->column : -1);
    return;
  }
  view.cut_height = std::clamp<int64_t>(std::llround(width * options.aspect_max), 1, image.height);
  view.cut_width = std::clamp<int64_t>(std::llround(height * options.aspect_max), 1, image.width);
  // torchvision rounds this middle down, unlike that of a centre crop.
  const auto middle = [](int64_t size, int64_t cut, const int64_t* at) {
    return at ? place(size, cut, 0.5, /*training=*/true, *at) : (size - cut) / 2;
  };
  view.cut_top = middle(image.height, view.cut_height, focus ? &focus->row : nullptr);
  view.cut_left = middle(image.width, view.cut_width, focus ? &focus->column : nullptr);
}

}  // namespace

int64_t middle_of(int64_t room) {
  const auto half = static_cast<double>(room) / 2;
  return static_cast<int64_t>(room < 0 ? std::floor(half) : std::nearbyint(half));
}

void check_transform(const TransformOptions& options) {
  require(options.crop >= 0, "the crop must be at least 0 pixels", static_cast<double>(options.crop));
  // A smaller scale would leave no pixel of most images.
  require(options.scale_min >= kLeastScale, "the smallest scale must be at least 0.01", options.scale_min);
  require(options.scale_max >= options.scale_min && options.scale_max <= 100,
          "the largest scale must be between the smallest and 100", options.scale_max);
  require(options.flip_probability >= 0 && options.flip_probability <= 1,
          "the flip probability must be in [0, 1]", options.flip_probability);
  require(options.short_side >= 0 && options.short_side <= kMostShortSide,
          "the short side must be in [0, 1048576] pixels", static_cast<double>(options.short_side));
  require(options.area_min > 0, "the smallest area must be above 0", options.area_min);
  require(options.area_max >= options.area_min && options.area_max <= 1,
          "the largest area must be between the smallest and 1", options.area_max);
  require(options.aspect_max >= 1 && options.aspect_max <= 100, "the largest aspect must be in [1, 100]",
          options.aspect_max);
  require(!options.training || !options.area_crop || options.crop > 0,
          "a crop of random area needs a crop above 0 pixels", static_cast<double>(options.crop));
  const ColorOptions& colors = options.colors;
  for (const double strength : {colors.brightness, colors.contrast, colors.saturation})
    require(strength >= 0 && strength <= 1,
            "the strengths of brightness, contrast and saturation must be in [0, 1]", strength);
  require(colors.lighting >= 0 && colors.lighting <= 10, "the lighting must be in [0, 10]", colors.lighting);
  if (options.resampling == Resampling::kInterpolate) {
    if (colors.changes() || options.reduce_jpeg)
      throw Error(
          ErrorKind::kUsage,
          "transform: changed colours and reduced JPEG files need bilinear or bicubic resampling, got "
          "interpolate");
  } else {
    require(options.ignore_id >= 0 && options.ignore_id <= 255, "the ignore id of bytes must be in [0, 255]",
            static_cast<double>(options.ignore_id));
  }
  for (int c = 0; c < 3; ++c) {
    require(std::isfinite(options.mean[c]), "each mean must be a number", options.mean[c]);
    require(options.std[c] > 0 && std::isfinite(options.std[c]), "each standard deviation must be above 0",
            options.std[c]);
  }
}

View choose_view(int64_t height, int64_t width, const TransformOptions& options, Random& random,
                 const std::string& name, const Pixel* focus) {
  Random attempts = random;  // of its own, so that the number of attempts does not matter
  const double scale_at = random.uniform(), top_at = random.uniform(), left_at = random.uniform(),
               flip_at = random.uniform();
  const bool training = options.training, flip = training && flip_at < options.flip_probability;
  const int64_t crop = options.crop;
  if (training && options.area_crop) {
    View view{crop, crop, 0, 0, crop, crop, flip};
    attempts = Random(attempts.next());
    cut_area(view, {height, width}, options, attempts, focus);
    return view;
  }
  const double smallest = training ? options.scale_min : 1;
  const Size base = base_size(height, width, options.short_side);
  const int64_t least_height = scaled(base.height, smallest), least_width = scaled(base.width, smallest);
  const int64_t least = std::min(base.height, base.width);
  if (std::llround(static_cast<double>(least) * smallest) < 1) {
    std::ostringstream message;
    message << "the scale " << smallest << " leaves no pixel of " << name << ", which has "
            << size_text(height, width) << " pixels: set scale_min to at least " << least_scale(least);
    throw Error(ErrorKind::kData, message.str());
  }
  const std::string crop_name = training ? "a crop" : "an eval_crop";
  constexpr int64_t kMostPadding = 8, kAlways = 1024;  // times the image's side; pixels
  if (crop > kAlways && crop > kMostPadding * std::max(least_height, least_width))
    throw Error(ErrorKind::kUsage,
                "a crop of " + size_text(crop, crop) + " would be padding but for a corner: " + name +
                    " has " + size_text(height, width) + " pixels; set " + crop_name + " of at most " +
                    std::to_string(kMostPadding * std::max(least_height, least_width)));
  if (crop > 0 && !options.pad && crop > std::min(least_height, least_width)) {
    std::ostringstream message;
    message << "a crop of " << size_text(crop, crop) << " does not fit into " << name << ", which has "
            << size_text(height, width) << " pixels";
    if (options.short_side > 0) message << " (its short side is scaled to " << options.short_side << ")";
    if (smallest != 1)
      message << " (" << size_text(least_height, least_width) << " at the scale " << smallest << ")";
    message << ": set pad, or " << crop_name << " of at most " << std::min(least_height, least_width);
    throw Error(ErrorKind::kUsage, message.str());
  }
  const double scale = training ? options.scale_min + (options.scale_max - options.scale_min) * scale_at : 1;
  View view{scaled(base.height, scale), scaled(base.width, scale), 0, 0, crop, crop, flip};
  if (crop == 0) {
    constexpr int64_t kMostPixels = int64_t{1} << 28;
    if (options.short_side > 0 && view.scaled_height > kMostPixels / view.scaled_width)
      throw Error(ErrorKind::kUsage, "a short side of " + std::to_string(options.short_side) + " makes " +
                                         size_text(view.scaled_height, view.scaled_width) + " pixels of " +
                                         name + ", which has " + size_text(height, width) +
                                         ": set a crop, or a smaller short side");
    view.height = view.scaled_height;
    view.width = view.scaled_width;
  } else {
    const int64_t row = scaled_pixel(focus ? focus->row : -1, height, view.scaled_height);
    const int64_t column = scaled_pixel(focus ? focus->column : -1, width, view.scaled_width);
    view.top = place(view.scaled_height, crop, top_at, training, row);
    view.left = place(view.scaled_width, crop, left_at, training, column);
  }
  return view;
}

double least_scale(int64_t side) {
  return std::ceil(5e3 / static_cast<double>(side)) / 1e4;
}

at::Tensor normalized(const at::Tensor& images, const Normalization& normalization) {
  if (images.scalar_type() != at::kByte) return images;
  float values[2][3];  // factor and offset, rounded as in view_image
  for (int c = 0; c < 3; ++c) {
    values[0][c] = static_cast<float>(1 / (255 * normalization.std[c]));
    values[1][c] = static_cast<float>(-normalization.mean[c] / normalization.std[c]);
  }
  // A copy to a GPU has read `values` when it returns, and does not wait for the device.
  const at::Tensor per_channel = at::from_blob(values, {2, 3, 1, 1}, at::kFloat)
                                     .to(images.device(), at::kFloat, /*non_blocking=*/true, /*copy=*/true);
  return images.to(at::kFloat).mul_(per_channel[0]).add_(per_channel[1]);
}

io::Orientation orientation_of(const TransformOptions& options) {
  return options.exif_orientation ? io::Orientation::kUpright : io::Orientation::kAsStored;
}

at::Tensor read_image(const std::filesystem::path& path, const TransformOptions& options) {
  return io::read_image(path, orientation_of(options));
}

at::Tensor view_image(const at::Tensor& image, const View& view, const TransformOptions& options) {
  const int64_t width = image.size(1);
  const Axis rows = rows_of(view, image), columns = columns_of(view, image);
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

at::Tensor view_label(const at::Tensor& label, const View& view, int64_t ignore_id, at::ScalarType type) {
  const Axis rows = rows_of(view, label), columns = columns_of(view, label);
  at::Tensor result = at::full({view.height, view.width}, ignore_id, type);
  const auto* source = label.const_data_ptr<uint8_t>();
  const auto fill = [&](auto* out) {
    for (int64_t y = rows.begin; y < rows.end; ++y) {
      const uint8_t* row = source + rows.nearest(y) * label.size(1);
      for (int64_t x = columns.begin; x < columns.end; ++x) out[y * view.width + x] = row[columns.nearest(x)];
    }
  };
  if (type == at::kByte) {
    fill(result.mutable_data_ptr<uint8_t>());
  } else {
    fill(result.mutable_data_ptr<int64_t>());
  }
  return result;
}

}  // namespace palimpsest::data
