#include "palimpsest/base/dtype.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/shape.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <type_traits>

namespace palimpsest {
namespace {

TEST(DType, SizesAreThoseOfTheStorage) {
  EXPECT_EQ(size_of(DType::f64), sizeof(double));
  EXPECT_EQ(size_of(DType::f32), sizeof(float));
  EXPECT_EQ(size_of(DType::f16), 2u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
}

TEST(DType, DispatchCallsWithTheTypeOfTheStorage) {
  const auto size = []<class T>() { return sizeof(T); };
  EXPECT_EQ(dispatch_float(DType::f32, size), 4u);
  EXPECT_EQ(dispatch_float(DType::f64, size), 8u);
}

TEST(DType, DispatchRefusesWhatTheKernelsDoNotHave) {
  const auto nothing = []<class T>() {};
  EXPECT_THROW(dispatch_float(DType::f16, nothing), std::invalid_argument);
  EXPECT_THROW(dispatch_float(DType::bf16, nothing), std::invalid_argument);
}

TEST(DType, SumsOfDoublesAreDoublesAndAllOthersAreFloats) {
  EXPECT_TRUE((std::is_same_v<accumulate_t<double>, double>));
  EXPECT_TRUE((std::is_same_v<accumulate_t<float>, float>));
}

TEST(Shape3, CountsValuesPerChannelAndInAll) {
  constexpr Shape3 shape{2, 3, 20};
  EXPECT_EQ(shape.per_channel(), 40);
  EXPECT_EQ(shape.elements(), 120);
}

TEST(Error, CarriesItsKindAsTheExitCode) {
  const Error error(ErrorKind::kCheckpoint, "truncated");
  EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_STREQ(error.what(), "truncated");
}

}  // namespace
}  // namespace palimpsest
