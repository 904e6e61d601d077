// A unit of one instruction set: nothing of std:: may be used (see kernels/cpu/abn/f32.cpp).
#include "tests/kernels/cpu/simd/storage_functions.h"

#include "palimpsest/kernels/cpu/simd/storage.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::storage_test {
namespace {

using testing::StorageForms;
using testing::StorageFunctions;

template <class S, class V>
void widen_vectors(int64_t count, const uint16_t* from, float* to) {
  constexpr int64_t kLanes = lanes<float, V>();
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, load_as<V>(reinterpret_cast<const S*>(from) + i));
}

template <class S, class V>
void narrow_vectors(int64_t count, const float* from, uint16_t* to) {
  constexpr int64_t kLanes = lanes<float, V>();
  for (int64_t i = 0; i < count; i += kLanes)
    store_as(reinterpret_cast<S*>(to) + i, load<V>(from + i), false);
}

template <class S, class V>
void round_vectors(int64_t count, const float* from, float* to) {
  constexpr int64_t kLanes = lanes<float, V>();
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, as_stored<S>(load<V>(from + i)));
}

/// The place in a step of lane `lane` of vector `part`.
template <Order kOrder>
constexpr int64_t place_of(int64_t part, int64_t lane) {
  return kOrder == Order::kHalves ? part * lanes<float, Vector<float>>() + lane : 2 * lane + part;
}

template <class S, Order kOrder>
void widen_steps(int64_t count, const uint16_t* from, float* to) {
  using V = Vector<float>;
  constexpr int64_t kLanes = lanes<float, V>();
  const S* const stored = reinterpret_cast<const S*>(from);
  for (int64_t i = 0; i < count; i += 2 * kLanes) {
    const V first = load_at<V>(stored, Place<kOrder, 0>{i, 0}),
            second = load_at<V>(stored, Place<kOrder, 1>{i, 0});
    for (int64_t k = 0; k < kLanes; ++k) {
      to[i + place_of<kOrder>(0, k)] = first[k];
      to[i + place_of<kOrder>(1, k)] = second[k];
    }
  }
}

template <class S, Order kOrder>
void narrow_steps(int64_t count, const float* from, uint16_t* to) {
  using V = Vector<float>;
  constexpr int64_t kLanes = lanes<float, V>();
  for (int64_t i = 0; i < count; i += 2 * kLanes) {
    V first, second;
    for (int64_t k = 0; k < kLanes; ++k) {
      first[k] = from[i + place_of<kOrder>(0, k)];
      second[k] = from[i + place_of<kOrder>(1, k)];
    }
    // Arrays begin on a boundary: every other step by a streaming store.
    store_step<kOrder>(reinterpret_cast<S*>(to) + i, i / (2 * kLanes) % 2 == 1, first, second);
  }
  streaming_fence();
}

template <class S>
constexpr StorageFunctions one_value(const char* name) {
  return {name,
          __is_same(S, Float16),
          false,
          widen_vectors<S, float>,
          narrow_vectors<S, float>,
          round_vectors<S, float>};
}
template <class S>
constexpr StorageFunctions one_vector(const char* name) {
  using V = Vector<float>;
  return {name, __is_same(S, Float16), false, widen_vectors<S, V>, narrow_vectors<S, V>, round_vectors<S, V>};
}
template <class S, Order kOrder>
constexpr StorageFunctions steps(const char* name) {
  return {name,
          __is_same(S, Float16),
          true,
          widen_steps<S, kOrder>,
          narrow_steps<S, kOrder>,
          round_vectors<S, Vector<float>>};
}

}  // namespace

extern const StorageForms kForms = {{
    one_value<BFloat16>("bf16, one value"),
    one_vector<BFloat16>("bf16, one vector"),
    steps<BFloat16, Order::kHalves>("bf16, halves"),
    steps<BFloat16, kAnyOrder<BFloat16>>("bf16, any order"),
    one_value<Float16>("f16, one value"),
    one_vector<Float16>("f16, one vector"),
    steps<Float16, Order::kHalves>("f16, halves"),
}};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::storage_test
