// device/panels.h and device/panel_values.cuh: few lanes are idle, every channel has a place of its own, and
// a warp's reads have no bank conflicts.
#include "palimpsest/kernels/cuda/device/panel_values.cuh"
#include "palimpsest/kernels/cuda/device/panels.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>

namespace palimpsest::testing {
namespace {

// A multiprocessor reads 16 bytes for 8 lanes at a time, from 32 banks of 4 bytes: lanes may read the same 16
// bytes, or 16 bytes that differ modulo 128.
template <class T, int kChannels, int kPanel>
void expect_no_conflicts() {
  using Numbers = kernels::cuda::PanelValues<T, kChannels, kPanel>;
  Numbers numbers;
  for (int part = 0; part < kChannels / Numbers::kPart; ++part)
    for (int quarter = 0; quarter < 4; ++quarter) {
      std::map<uintptr_t, uintptr_t> reader;  // bank: address
      for (int lane = 8 * quarter; lane < 8 * (quarter + 1); ++lane) {
        const int thread = lane % (kPanel / kChannels);
        const auto address = reinterpret_cast<uintptr_t>(&numbers.parts[part][thread][0]);
        const auto [found, is_new] = reader.try_emplace(address % 128 / 16, address);
        EXPECT_EQ(found->second, address)
            << kChannels << " of " << kPanel << " channels: bank conflict of lane " << lane;
      }
    }
}

TEST(PanelValues, AWarpReadsThoseOfItsVectorsWithoutBankConflicts) {
  expect_no_conflicts<float, 8, 8>();
  expect_no_conflicts<float, 8, 16>();
  expect_no_conflicts<float, 8, 32>();
  expect_no_conflicts<float, 8, 64>();
  expect_no_conflicts<float, 4, 16>();
  expect_no_conflicts<float, 4, 32>();
  expect_no_conflicts<float, 4, 64>();
}

TEST(Panels, AreAsWideAsFewIdleLanesAllow) {
  using kernels::cuda::panel_width;
  // Vectors per pixel, the most and the least width, the width.
  const int64_t expected[][4] = {{32, 8, 2, 8},  {8, 8, 2, 8},  {4, 8, 2, 4},     {2, 8, 2, 2},
                                 {1, 8, 2, 1},   {3, 8, 2, 4},  {9, 8, 2, 2},     {12, 8, 2, 4},
                                 {129, 8, 2, 8}, {17, 8, 2, 2}, {19, 32, 16, 32}, {3, 32, 16, 4},
                                 {1, 32, 16, 1}};
  for (const auto& [vectors, most, least, width] : expected)
    EXPECT_EQ(panel_width(vectors, static_cast<int>(most), static_cast<int>(least)), width)
        << vectors << " vectors in panels of " << least << " to " << most;
}

TEST(PanelValues, AThreadFindsTheNumbersOfItsChannels) {
  kernels::cuda::PanelValues<float, 8, 64> numbers;
  std::set<const float*> places;
  for (int j = 0; j < 64; ++j) {
    numbers[j] = static_cast<float>(j);
    places.insert(&numbers[j]);
  }
  EXPECT_EQ(places.size(), 64u);
  for (int first = 0; first < 64; first += 8) {
    float held[8];
    numbers.read(first, held);
    for (int c = 0; c < 8; ++c) {
      EXPECT_EQ(held[c], static_cast<float>(first + c));
      EXPECT_EQ(numbers.of_thread(first, c), static_cast<float>(first + c));
    }
  }
}

}  // namespace
}  // namespace palimpsest::testing
