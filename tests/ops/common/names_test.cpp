#include "palimpsest/ops/common/names.h"

#include "tests/support/error_of.h"
#include "tests/support/grid.h"

#include <gtest/gtest.h>

#include <string>

namespace palimpsest::ops::common_tests {
namespace {

using testing::kAllSaved;
using testing::Saved;

TEST(Names, OfActivationsAndSavedTensorsAreParsedBack) {
  for (const auto& [activation, name, is_listed] : kernels::kActivations) {
    EXPECT_EQ(activation_from_name(name), activation);
    if (is_listed) {
      EXPECT_EQ(activation_name(activation), name);
    }
  }
  for (const Saved saved : kAllSaved) EXPECT_EQ(saved_from_name(saved_name(saved)), saved);
}

TEST(Names, BeforeThisVocabularyStillWork) {
  EXPECT_EQ(saved_from_name("scaled"), Saved::kPreActivation);
  EXPECT_EQ(saved_name(Saved::kPreActivation), "pre_activation");
  EXPECT_EQ(saved_from_arguments("abn", std::nullopt, "scaled"), Saved::kPreActivation);
  EXPECT_EQ(saved_from_arguments("abn", "input", std::nullopt), Saved::kInput);
  EXPECT_EQ(saved_from_arguments("abn", std::nullopt, std::nullopt), Saved::kOutput);
}

TEST(Names, ThatAreUnknownOrGivenTwiceAreErrors) {
  const auto has = [](const std::string& error, const char* part) {
    return error.find(part) != std::string::npos;
  };
  const std::string unknown = testing::error_of([] { saved_from_name("outptu"); });
  EXPECT_TRUE(has(unknown, "'outptu'") && has(unknown, "'output'")) << unknown;
  const std::string twice = testing::error_of([] { saved_from_arguments("abn", "input", "output"); });
  EXPECT_TRUE(has(twice, "saved='input'") && has(twice, "keep='output'")) << twice;
  const std::string default_twice =
      testing::error_of([] { saved_from_arguments("abn", "output", "scaled"); });
  EXPECT_TRUE(has(default_twice, "saved='output' and keep='scaled'")) << default_twice;
  const std::string old = testing::error_of([] { saved_from_arguments("abn", std::nullopt, "inplace"); });
  EXPECT_TRUE(has(old, "unknown value of keep 'inplace' (known: output, ")) << old;
}

}  // namespace
}  // namespace palimpsest::ops::common_tests
