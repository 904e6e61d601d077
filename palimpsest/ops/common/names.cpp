#include "palimpsest/ops/common/names.h"

#include "palimpsest/base/named_enum.h"
#include "palimpsest/base/nearest_name.h"

#include <c10/util/Exception.h>

namespace palimpsest::ops {
namespace {

using kernels::Saved;

constexpr NamedEnum kSaved{"value of saved",
                           {EnumName{Saved::kOutput, "output"},
                            {Saved::kOutputForm1, "output_form1"},
                            {Saved::kPreActivation, "pre_activation"},
                            {Saved::kPreActivation, "scaled", /*is_listed=*/false},
                            {Saved::kNormalized, "normalized"},
                            {Saved::kInput, "input"},
                            {Saved::kOutputBit, "output_bit"}}};

template <class Enum, std::size_t kRows>
Enum parse(const NamedEnum<Enum, kRows>& names, std::string_view name) {
  const auto value = names.find(name);
  TORCH_CHECK(value, "[abn] ", names.unknown(name));
  return *value;
}

}  // namespace

Activation activation_from_name(std::string_view name) {
  return parse(kernels::kActivations, name);
}

std::string_view activation_name(Activation activation) {
  return kernels::kActivations.name(activation);
}

Saved saved_from_name(std::string_view name) {
  return parse(kSaved, name);
}

std::string_view saved_name(Saved saved) {
  return kSaved.name(saved);
}

Saved saved_from_arguments(const char* op, const std::optional<std::string_view>& saved,
                           const std::optional<std::string_view>& keep) {
  if (!keep) return saved_from_name(saved.value_or("output"));
  TORCH_CHECK(!saved, "[", op, "] keep is the old name of saved: give one of the two, got saved='",
              saved.value_or(""), "' and keep='", *keep, "'");
  const auto value = kSaved.find(*keep);
  TORCH_CHECK(value, "[", op, "] ", unknown_name_message("value of keep", *keep, kSaved.names()));
  return *value;
}

}  // namespace palimpsest::ops
