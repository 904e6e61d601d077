#include "palimpsest/io/safetensors/header.h"

#include "palimpsest/base/printable.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

namespace palimpsest::io {
namespace {

using nlohmann::json;

struct DTypeName {
  at::ScalarType dtype;
  const char* name;
};
constexpr std::array kDTypes{
    DTypeName{at::kFloat, "F32"},     DTypeName{at::kDouble, "F64"}, DTypeName{at::kHalf, "F16"},
    DTypeName{at::kBFloat16, "BF16"}, DTypeName{at::kLong, "I64"},   DTypeName{at::kInt, "I32"},
    DTypeName{at::kShort, "I16"},     DTypeName{at::kByte, "U8"},    DTypeName{at::kChar, "I8"},
    DTypeName{at::kBool, "BOOL"},
};

std::string known_dtypes() {
  std::string list;
  for (const auto& d : kDTypes) list.append(list.empty() ? "" : ", ").append(d.name);
  return list;
}

[[noreturn]] void invalid(const std::string& message) {
  throw std::invalid_argument(message);
}

std::string quoted(const std::string& name) {
  return "'" + printable(shortened(name, 200)) + "'";
}

// A value of the file for a message: it may have megabytes.
std::string shown(const json& value) {
  return printable(shortened(value.dump(), 100));
}

/// Reads the events of the parser into the members of the outermost object, in order. The parser's own value would
/// drop one of two members of one name, and its callbacks take quadratic time.
class HeaderMembers final : public nlohmann::json_sax<json> {
 public:
  std::vector<std::pair<std::string, json>> members;

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value) != nullptr; }
  bool string(string_t& value) override { return add(std::move(value)) != nullptr; }
  bool binary(binary_t& /*value*/) override { return false; }  // JSON has none
  bool start_object(std::size_t /*elements*/) override { return open(json::object()); }
  bool start_array(std::size_t /*elements*/) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    const bool is_new = open_.size() == 1 ? names_.insert(name).second : !open_.back()->contains(name);
    if (!is_new) invalid("its header has " + quoted(std::as_const(name)) + " twice");
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const json::exception& error) override {
    invalid("its header is not JSON: " + printable(shortened(error.what(), 300)));
  }

 private:
  /// Adds a value to the innermost open list or object.
  json* add(json value) {
    if (open_.size() == 1) return &members.emplace_back(key_, std::move(value)).second;
    json& parent = *open_.back();
    if (!parent.is_array()) return &(parent[key_] = std::move(value));
    if (parent.size() == kMaxDimensions) invalid("its header has a list of more than 64 values");
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool open(json container) {
    // A tensor's entry holds lists, nothing deeper; the limit keeps "{{{{..." from growing memory.
    constexpr std::size_t kMostLevels = 4;
    if (open_.size() == kMostLevels) invalid("its header is nested too deeply");
    open_.push_back(open_.empty() ? nullptr : add(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::vector<json*> open_;  // the first, the outermost object, is `members`
  std::set<std::string> names_;
  std::string key_;
};

const json& member(const json& entry, const std::string& name, const char* key) {
  const auto found = entry.find(key);
  if (found == entry.end()) invalid("tensor " + quoted(name) + " has no " + key);
  return *found;
}

std::vector<uint64_t> numbers(const json& list, const std::string& name, const char* key) {
  if (!list.is_array()) invalid("tensor " + quoted(name) + ": " + key + " is not a list of numbers");
  std::vector<uint64_t> values;
  for (const json& value : list) {
    if (!value.is_number_unsigned()) invalid("tensor " + quoted(name) + ": " + key + " has " + shown(value));
    values.push_back(value.get<uint64_t>());
  }
  return values;
}

at::ScalarType parse_dtype(const json& value, const std::string& name) {
  if (value.is_string()) {
    for (const auto& d : kDTypes) {
      if (value.get_ref<const std::string&>() == d.name) return d.dtype;
    }
  }
  invalid("tensor " + quoted(name) + " has the element type " + shown(value) + "; known are " +
          known_dtypes());
}

SafetensorsEntry parse_entry(const std::string& name, const json& entry) {
  if (!entry.is_object()) invalid("the entry of tensor " + quoted(name) + " is not an object");
  if (entry.size() != 3) invalid("tensor " + quoted(name) + " needs exactly dtype, shape and data_offsets");
  SafetensorsEntry parsed{name, parse_dtype(member(entry, name, "dtype"), name), {}, 0, 0};
  const auto offsets = numbers(member(entry, name, "data_offsets"), name, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    invalid("tensor " + quoted(name) + ": data_offsets must be [begin, end] with begin <= end");
  }
  parsed.begin = offsets[0];
  parsed.end = offsets[1];

  // Two products: `extent` takes a dimension of 0 as 1, as libtorch does when it computes strides, which must
  // not overflow.
  int64_t bytes = static_cast<int64_t>(c10::elementSize(parsed.dtype)), extent = bytes;
  for (const uint64_t size : numbers(member(entry, name, "shape"), name, "shape")) {
    const auto dimension = static_cast<int64_t>(size);
    if (size > INT64_MAX || __builtin_mul_overflow(extent, std::max<int64_t>(dimension, 1), &extent)) {
      invalid("tensor " + quoted(name) + ": the shape is too large");
    }
    bytes *= dimension;  // cannot overflow: |bytes| <= extent
    parsed.shape.push_back(dimension);
  }
  if (static_cast<uint64_t>(bytes) != parsed.end - parsed.begin) {
    invalid("tensor " + quoted(name) + ": its shape needs " + std::to_string(bytes) +
            " bytes, its data_offsets give " + std::to_string(parsed.end - parsed.begin));
  }
  return parsed;
}

std::map<std::string, std::string> parse_metadata(const json& object) {
  if (!object.is_object()) invalid("__metadata__ is not an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) invalid("__metadata__: the value of " + quoted(key) + " is not a text");
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// Every byte after the header must belong to exactly one tensor.
void check_offsets(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
  std::vector<const SafetensorsEntry*> sorted;
  sorted.reserve(entries.size());
  for (const auto& entry : entries) sorted.push_back(&entry);
  std::stable_sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  uint64_t expected = 0;
  for (const auto* entry : sorted) {
    if (entry->begin != expected) {
      invalid("the values of tensor " + quoted(entry->name) + " begin at " + std::to_string(entry->begin) +
              (entry->begin < expected ? ", inside another tensor" : ", behind a hole") + "; expected " +
              std::to_string(expected));
    }
    expected = entry->end;
  }
  if (expected != data_bytes) {
    invalid("its tensors need " + std::to_string(expected) + " bytes, the file holds " +
            std::to_string(data_bytes) +
            (data_bytes < expected ? ": it is truncated" : ": it has bytes that belong to no tensor"));
  }
}

std::string to_json(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    invalid("safetensors holds UTF-8 texts only, got " + quoted(text));
  }
}

void check_tensor(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) {
    invalid("safetensors holds dense tensors only; " + quoted(name) +
            (tensor.defined() ? " is sparse" : " is undefined"));
  }
  for (const auto& d : kDTypes) {
    if (d.dtype == tensor.scalar_type()) return;
  }
  invalid("safetensors tensor " + quoted(name) + " has the element type " +
          c10::toString(tensor.scalar_type()) + "; known are " + known_dtypes());
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_bytes) {
  if (!text.starts_with('{')) invalid("its header does not begin with '{': it is not a safetensors file");
  HeaderMembers root;
  json::sax_parse(text.begin(), text.end(), &root);
  SafetensorsHeader header;
  for (const auto& [name, value] : root.members) {
    if (name == "__metadata__") {
      header.metadata = parse_metadata(value);
    } else {
      header.entries.push_back(parse_entry(name, value));
    }
  }
  check_offsets(header.entries, data_bytes);
  return header;
}

std::string format_safetensors_header(const Safetensors& contents, std::vector<std::size_t>& order) {
  const auto& tensors = contents.tensors;
  std::set<std::string> names{"__metadata__"};
  for (const auto& [name, tensor] : tensors) {
    if (!names.insert(name).second)
      invalid("safetensors needs distinct names, got " + quoted(name) + " twice");
    check_tensor(name, tensor);
  }
  order.resize(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return tensors[a].second.element_size() > tensors[b].second.element_size();
  });
  std::vector<uint64_t> begin(tensors.size());
  uint64_t next = 0;
  for (const std::size_t i : order) {
    begin[i] = next;
    next += tensors[i].second.nbytes();
  }

  // The text is written here and not from a json value, which would sort the names.
  std::string text = "{";
  const auto add = [&](const std::string& key, const std::string& value) {
    text.append(text.size() > 1 ? "," : "").append(to_json(key)).append(":").append(value);
  };
  if (!contents.metadata.empty()) {
    std::string metadata = "{";
    for (const auto& [key, value] : contents.metadata) {
      metadata.append(metadata.size() > 1 ? "," : "").append(to_json(key)).append(":").append(to_json(value));
    }
    add("__metadata__", metadata + "}");
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    const auto type = tensor.scalar_type();
    const auto* dtype =
        std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeName& d) { return d.dtype == type; });
    add(name, "{\"dtype\":\"" + std::string(dtype->name) +
                  "\",\"shape\":" + json(tensor.sizes().vec()).dump() +
                  ",\"data_offsets\":" + json({begin[i], begin[i] + tensor.nbytes()}).dump() + "}");
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxSafetensorsHeader) {
    invalid("a safetensors header may have " + std::to_string(kMaxSafetensorsHeader) +
            " bytes, this one has " + std::to_string(text.size()));
  }
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xFF);
  return length + text;
}

}  // namespace palimpsest::io
