#include "palimpsest/data/label_encoding.h"

#include "palimpsest/base/error.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/io/image.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <stdexcept>

namespace palimpsest::data {

LabelEncoding official_encoding(const ClassSet& set, bool palette) {
  LabelEncoding encoding;
  for (const int64_t id : set.official_ids) {
    if (id < 0 || id > 255)
      throw Error(
          ErrorKind::kUsage,
          "an official id must be in [0, 255] to be stored in an 8-bit image, got " + std::to_string(id));
    encoding.values.push_back(static_cast<uint8_t>(id));
  }
  if (!palette) return encoding;
  encoding.palette.resize(256);
  for (std::size_t i = 0; i < std::min(set.colors.size(), encoding.values.size()); ++i)
    encoding.palette[encoding.values[i]] = set.colors[i];
  return encoding;
}

LabelEncoding official_encoding(std::string_view name, int64_t classes) {
  const ClassSet* set = class_set(name);
  if (!set)
    throw Error(ErrorKind::kUsage, "no official ids of labels are known for the data set '" +
                                       std::string(name) + "': name one that has them, such as cityscapes");
  const auto count = static_cast<int64_t>(set->official_ids.size());
  if (count != classes)
    throw Error(ErrorKind::kUsage, "official ids of labels: " + std::string(name) + " has " +
                                       std::to_string(count) + " classes, the network has " +
                                       std::to_string(classes));
  return official_encoding(*set, name == "voc" || name == "vistas");
}

std::string encode_labels(const at::Tensor& classes, const LabelEncoding& encoding) {
  if (encoding.values.empty()) return io::encode_png_labels(classes, encoding.palette);
  const at::Tensor from = classes.contiguous(), to = at::empty_like(from);
  const auto* read = from.const_data_ptr<uint8_t>();
  auto* write = to.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < from.numel(); ++i) {
    if (read[i] >= encoding.values.size())
      throw std::invalid_argument("encode_labels has bytes for " + std::to_string(encoding.values.size()) +
                                  " classes, got class " + std::to_string(read[i]));
    write[i] = encoding.values[read[i]];
  }
  return io::encode_png_labels(to, encoding.palette);
}

void write_labels(const std::filesystem::path& path, const at::Tensor& classes,
                  const LabelEncoding& encoding) {
  io::write_file_atomically(path, encode_labels(classes, encoding));
}

std::string label_file_name(const std::filesystem::path& image) {
  // An example of a shard is named "SHARD.tar: MEMBER".
  const std::string name = image.string(), in_shard = ".tar: ";
  const std::size_t member = name.rfind(in_shard);
  if (member == std::string::npos) return image.stem().string() + ".png";
  return std::filesystem::path(name.substr(member + in_shard.size())).stem().string() + ".png";
}

}  // namespace palimpsest::data
