#include "palimpsest/data/example.h"

#include "palimpsest/base/printable.h"
#include "palimpsest/data/resize.h"
#include "palimpsest/io/image.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

namespace palimpsest::data {
namespace {

/// The picture of an example.
struct Source {
  io::ImageSize size;
  bool reducible;             ///< whether `decode` takes eighths below 8
  io::MirroredAxes mirrored;  ///< of a reducible one
  std::function<at::Tensor(const io::ImagePart&)> decode;
};

/// One axis of a view: what is cut out of the image, what it is scaled to, and which window is shown.
struct ViewAxis {
  int64_t source_size;
  bool mirrored;  // whether the file has the axis the other way round
  int64_t cut_from, cut_size;
  int64_t scaled_size;
  int64_t first, count;  // of the window

  /// Returns the part of the window that shows the image; the rest is padding.
  PixelRange shown() const {
    return {std::clamp<int64_t>(-first, 0, count), std::clamp<int64_t>(scaled_size - first, 0, count)};
  }
  /// Returns the resize of a picture at `eighths` / 8 of its size, of which this axis has `reduced` pixels.
  ResizeAxis resize(int eighths, int64_t reduced, Filter filter) const {
    const auto at = [&](int64_t pixel) { return static_cast<double>(pixel) * eighths / 8; };
    // The last pixel in the order of the file is a part of one.
    const double begin = mirrored ? static_cast<double>(reduced) - at(source_size) : 0;
    const double low = begin + at(cut_from), high = begin + at(cut_from + cut_size);
    const PixelRange visible{static_cast<int64_t>(std::floor(low)),
                             std::min(reduced, static_cast<int64_t>(std::ceil(high)))};
    return ResizeAxis({visible, low, high, scaled_size, {first + shown().begin, first + shown().end}},
                      filter);
  }
};

/// Returns the smallest number of eighths at which the cut has the pixels that it is scaled to.
int least_eighths(const ViewAxis& rows, const ViewAxis& columns) {
  const auto eighths = [](const ViewAxis& axis) {
    return (8 * axis.scaled_size + axis.cut_size - 1) / axis.cut_size;
  };
  return static_cast<int>(std::clamp<int64_t>(std::max(eighths(rows), eighths(columns)), 1, 8));
}

/// Copies a picture (h, w, 3) to the window (3, H, W) at (top, left), mirrored in the window if `flip`.
void put(const at::Tensor& picture, const at::Tensor& window, int64_t top, int64_t left, bool flip) {
  const int64_t height = picture.size(0), width = picture.size(1);
  const int64_t window_height = window.size(1), window_width = window.size(2);
  const auto* from = picture.const_data_ptr<uint8_t>();
  auto* to = window.mutable_data_ptr<uint8_t>();
  const int64_t begin = flip ? window_width - 1 - left : left, step = flip ? -1 : 1;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t c = 0; c < 3; ++c) {
      uint8_t* row = to + (c * window_height + top + y) * window_width + begin;
      const uint8_t* pixels = from + y * width * 3 + c;
      for (int64_t x = 0; x < width; ++x) row[x * step] = pixels[3 * x];
    }
  }
}

at::Tensor view_bytes(const Source& source, const View& view, const TransformOptions& options,
                      const ColorChange& colors) {
  const io::ImageSize size = source.size;
  const bool cut = view.cut_height > 0;
  const ViewAxis rows{size.height,
                      source.mirrored.rows,
                      cut ? view.cut_top : 0,
                      cut ? view.cut_height : size.height,
                      view.scaled_height,
                      view.top,
                      view.height};
  const ViewAxis columns{size.width,
                         source.mirrored.columns,
                         cut ? view.cut_left : 0,
                         cut ? view.cut_width : size.width,
                         view.scaled_width,
                         view.left,
                         view.width};
  at::Tensor window = at::empty({3, view.height, view.width}, at::kByte);
  const bool covered = rows.shown().size() == view.height && columns.shown().size() == view.width;
  if (!covered)
    for (int c = 0; c < 3; ++c)
      window[c].fill_(static_cast<int64_t>(std::clamp(std::round(255 * options.mean[c]), 0.0, 255.0)));

  const int eighths = options.reduce_jpeg && source.reducible ? least_eighths(rows, columns) : 8;
  const io::ImageSize reduced = io::reduced_size(size, eighths);
  const Filter filter = options.resampling == Resampling::kBicubic ? Filter::kBicubic : Filter::kBilinear;
  const ResizeAxis row_axis = rows.resize(eighths, reduced.height, filter);
  const ResizeAxis column_axis = columns.resize(eighths, reduced.width, filter);
  const PixelRange y = row_axis.source(), x = column_axis.source();
  const at::Tensor picture =
      resize(source.decode({eighths, y.begin, x.begin, y.size(), x.size()}), row_axis, column_axis);
  change_colors(picture, colors);
  put(picture, window, rows.shown().begin, columns.shown().begin, view.flip);
  return window;
}

/// Returns a pixel of the class, uniform among all; nothing if there is none.
std::optional<Pixel> pixel_of_class(const at::Tensor& label, int64_t class_id, Random& random) {
  const auto* ids = label.const_data_ptr<uint8_t>();
  const auto* end = ids + label.numel();
  const auto id = static_cast<uint8_t>(class_id);
  const int64_t count = std::count(ids, end, id);
  if (count == 0 || class_id > 255) return std::nullopt;
  int64_t left = random.below(count);
  const auto* found = std::find_if(ids, end, [&](uint8_t value) { return value == id && left-- == 0; });
  return Pixel{(found - ids) / label.size(1), (found - ids) % label.size(1)};
}

Sample make(const Source& source, const at::Tensor& label, const TransformOptions& options, Random& random,
            const std::string& name, int64_t class_id) {
  const io::ImageSize size = source.size;
  std::optional<Pixel> focus;
  if (class_id >= 0 && label.defined()) focus = pixel_of_class(label, class_id, random);
  const View view = choose_view(size.height, size.width, options, random, name, focus ? &*focus : nullptr);
  const bool bytes = options.resampling != Resampling::kInterpolate;
  Sample sample;
  sample.name = name;
  sample.normalization = {options.mean, options.std};
  if (bytes) {
    const ColorChange colors = options.training ? draw_colors(options.colors, random) : ColorChange{};
    sample.image = view_bytes(source, view, options, colors);
  } else {
    sample.image = view_image(source.decode({8, 0, 0, size.height, size.width}), view, options);
  }
  if (label.defined())
    sample.target = view_label(label, view, options.ignore_id, bytes ? at::kByte : at::kLong);
  return sample;
}

}  // namespace

Sample make_example(const io::ImageFile& image, const at::Tensor& label, const TransformOptions& options,
                    Random& random, const std::string& name, int64_t class_id) {
  if (label.defined() && image.turns_unseen()) {
    TORCH_WARN_ONCE(
        "image '", printable(name),
        "' is turned or mirrored by its Exif data, which its size does not show, and its label is "
        "taken for one of the upright photo; if the labels were drawn on the stored pixels, read "
        "photos with --no-exif-orientation. Only the first such image is named");
  }
  const Source source{image.size(), image.is_reducible(), image.mirrored(),
                      [&](const io::ImagePart& part) { return image.decode(part); }};
  return make(source, label, options, random, name, class_id);
}

Sample make_example(const at::Tensor& image, const at::Tensor& label, const TransformOptions& options,
                    Random& random, const std::string& name, int64_t class_id) {
  const auto decode = [&](const io::ImagePart& part) {
    return image.narrow(0, part.top, part.height).narrow(1, part.left, part.width).contiguous();
  };
  const Source source{{image.size(0), image.size(1)}, /*reducible=*/false, {}, decode};
  return make(source, label, options, random, name, class_id);
}

io::ImageFile open_image(const std::filesystem::path& path, const TransformOptions& options) {
  return io::ImageFile(path, orientation_of(options));
}

}  // namespace palimpsest::data
