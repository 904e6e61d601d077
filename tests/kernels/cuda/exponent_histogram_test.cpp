// kernels/cuda/exponent_histogram.h, executed by the emulator: the counts of the reference.
#include "palimpsest/kernels/cuda/exponent_histogram.h"

#include "palimpsest/base/random.h"
#include "tests/kernels/abn_case.h"
#include "tests/kernels/cuda/emulated.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>

namespace palimpsest::testing {
namespace {

using kernels::ExponentHistogram;

constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};

/// `n` values that begin `off` values behind a multiple of 16 bytes and end where their memory ends.
template <class Word>
class Values {
 public:
  Values(int64_t n, int64_t off, uint64_t seed)
      : off_(off), n_(n), words_(new(std::align_val_t{16}) Word[static_cast<std::size_t>(off + n)]) {
    Random random(seed);
    for (int64_t i = 0; i < off + n; ++i)
      words_.get()[i] = static_cast<Word>(static_cast<uint32_t>(random.uniform(0, 4294967296.0)));
  }
  Word* data() { return words_.get() + off_; }
  int64_t size() const { return n_; }

 private:
  struct Free {
    void operator()(Word* p) const { ::operator delete[](p, std::align_val_t{16}); }
  };
  int64_t off_, n_;
  std::unique_ptr<Word[], Free> words_;
};

/// Both add to counts that are not 0.
void expect_reference(DType dtype, const void* x, int64_t n) {
  ExponentHistogram got{}, want{};
  got[kernels::kNaNBin] = want[kernels::kNaNBin] = 5;
  kernels::cuda::exponent_histogram(dtype, x, n, got.data(), nullptr);
  kernels::reference::exponent_histogram(dtype, x, n, want);
  EXPECT_EQ(got, want) << n << " values of " << name_of(dtype);
}

class CudaExponentHistogram : public ::testing::Test {
 protected:
  ~CudaExponentHistogram() override { cuda_emulator::settings() = {}; }
};

TEST_F(CudaExponentHistogram, IsTheReferenceForAnyLengthAndStart) {
  int cases = 0;
  for (const DType dtype : kDTypes)
    for (const int64_t n : {1, 3, 4, 5, 7, 8, 9, 31, 32, 33, 1000})
      for (const int64_t off : {0, 1, 2, 3}) {
        cuda_emulator::settings().order = kOrders[cases++ % 3];
        if (dtype == DType::f32)
          expect_reference(dtype, Values<uint32_t>(n, off, 3).data(), n);
        else
          expect_reference(dtype, Values<uint16_t>(n, off, 3).data(), n);
      }
}

TEST_F(CudaExponentHistogram, IsTheReferenceInManyBlocksAndEveryOrderOfThreads) {
  constexpr int64_t kN = 100003;  // six blocks' vectors
  Values<uint32_t> values(kN, 1, 7);
  for (const Order order : kOrders) {
    cuda_emulator::settings().order = order;
    expect_reference(DType::f32, values.data(), kN);
  }
}

TEST_F(CudaExponentHistogram, CountsEverySixteenBitNumber) {
  std::vector<uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const DType dtype : {DType::f16, DType::bf16}) expect_reference(dtype, all.data(), 65536);
}

TEST_F(CudaExponentHistogram, ABinHoldsOnePowerOfTwo) {
  std::vector<float> values{0.0f,
                            -0.0f,
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            NAN,
                            -NAN};
  for (int e = kernels::kLowestExponent; e <= kernels::kHighestExponent; ++e) {
    values.push_back(std::ldexp(1.0f, e));
    values.push_back(-std::nextafter(values.back(), 0.0f));
  }
  for (const float v : values) expect_reference(DType::f32, &v, 1);
}

TEST_F(CudaExponentHistogram, IsOneLaunchAndNoneForNoValues) {
  const int64_t before = cuda_emulator::launches();
  ExponentHistogram counts{};
  kernels::cuda::exponent_histogram(DType::f32, nullptr, 0, counts.data(), nullptr);
  EXPECT_EQ(cuda_emulator::launches(), before);
  const float value = 1;
  kernels::cuda::exponent_histogram(DType::f32, &value, 1, counts.data(), nullptr);
  EXPECT_EQ(cuda_emulator::launches(), before + 1);
  EXPECT_THROW(kernels::cuda::exponent_histogram(DType::f64, &value, 1, counts.data(), nullptr),
               std::invalid_argument);
}

}  // namespace
}  // namespace palimpsest::testing
