#include "palimpsest/base/dtype.h"

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

TEST(DType, DispatchCoversSixteenBitStorage) {
  const auto size = [](DType dtype) { return dispatch_float(dtype, []<class T>() { return sizeof(T); }); };
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
    EXPECT_EQ(size(dtype), size_of(dtype));
  EXPECT_THROW(size(static_cast<DType>(17)), std::invalid_argument);
}

TEST(DType, SumsOfDoublesAreDoublesAndAllOthersAreFloats) {
  EXPECT_TRUE((std::is_same_v<accumulate_t<double>, double>));
  EXPECT_TRUE((std::is_same_v<accumulate_t<float>, float>));
}

}  // namespace
}  // namespace palimpsest
