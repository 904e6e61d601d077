#include "palimpsest/io/safetensors/header.h"

#include "palimpsest/base/printable.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <stdexcept>
#include <unordered_map>

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

// JSON allows a repeated name, and the parser would drop one of the two values. So this class watches the
// parser's events. `names` gets the names of the outermost object in order.
json parse_without_duplicates(std::string_view text, std::vector<std::string>& names) {
  std::vector<std::set<std::string>> seen;  // per nesting depth
  std::size_t list_length = 0;              // lists are not nested
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) {
      // A tensor's entry holds arrays, nothing deeper; the limit keeps "{{{{..." from growing this vector.
      if (depth > 3) invalid("its header is nested too deeply");
      seen.resize(std::max<std::size_t>(seen.size(), depth + 1));
      seen[depth].clear();
    } else if (event == json::parse_event_t::array_start) {
      if (depth > 3) invalid("its header is nested too deeply");
      list_length = 0;
    } else if (event == json::parse_event_t::value) {
      if (++list_length > kMaxDimensions) invalid("its header has a list of more than 64 values");
    } else if (event == json::parse_event_t::key) {
      list_length = 0;
      const auto& name = value.get_ref<const std::string&>();
      if (!seen[depth - 1].insert(name).second) invalid("its header has " + quoted(name) + " twice");
      if (depth == 1) names.push_back(name);
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& e) {
    invalid("its header is not JSON: " + printable(shortened(e.what(), 300)));
  }
}

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
  std::vector<std::string> names;
  const json root = parse_without_duplicates(text, names);
  SafetensorsHeader header;
  for (const std::string& name : names) {
    const json& value = root[name];
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
