// A unit of one instruction set: nothing of std:: may be used (see cpu/abn/f32.cpp).
#include "palimpsest/kernels/cpu/max_pool/kernels.h"

#include "palimpsest/kernels/cpu/max_pool/storage.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::max_pool {

using cpu::max_pool::Kernels;
using cpu::max_pool::Sweeps;
using cpu::max_pool::Tap;
using cpu::max_pool::Taps;

namespace {

PALIMPSEST_HOST_DEVICE int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
PALIMPSEST_HOST_DEVICE int64_t divide_up(int64_t a, int64_t b) {
  return a <= 0 ? 0 : (a + b - 1) / b;
}
PALIMPSEST_HOST_DEVICE int64_t round_up(int64_t a, int64_t to) {
  return divide_up(a, to) * to;
}

/// Positions [first, last) of a window along one dimension, which lie in the image.
struct Inside {
  int64_t first, last;
};
PALIMPSEST_HOST_DEVICE Inside inside(int64_t start, int64_t kernel, int64_t dilation, int64_t size) {
  return {divide_up(-start, dilation), smaller(kernel, divide_up(size - start, dilation))};
}

template <class S>
PALIMPSEST_HOST_DEVICE void store_positions(uint8_t* argmax, typename S::Index position, int64_t count) {
  store_some(argmax, narrowed<sizeof(typename S::Position), S::kLanes>(position), count);
}

// ---- NCHW: windows side by side fill the vectors

/// Some input rows, rearranged so that the values which neighbouring windows hold at one position are
/// neighbours: pixel i*stride + phase of the padded row lies at [phase][i]. Values outside of the image are
/// the lowest value, which never replaces the value that a window begins with.
template <class S>
class PhaseRows {
  using T = typename S::T;

 public:
  explicit PhaseRows(const MaxPoolProblem& problem)
      : problem_(problem),
        slots_(smaller((problem.window.kernel_size.h - 1) * problem.window.dilation.h + 1, problem.in.h)),
        phases_(problem.window.stride.w),
        length_(round_up(problem.out.w, S::kLanes) + reach() / phases_) {}

  int64_t bytes() const { return slots_ * 8 + slots_ * phases_ * length_ * static_cast<int64_t>(sizeof(T)); }

  void place_in(void* scratch) {
    held_ = static_cast<int64_t*>(scratch);
    values_ = reinterpret_cast<T*>(held_ + slots_);
    for (int64_t i = 0; i < slots_ * phases_ * length_; ++i) values_[i] = S::kLowest;
  }

  void begin_plane(const T* plane) {
    plane_ = plane;
    for (int64_t i = 0; i < slots_; ++i) held_[i] = -1;
  }

  /// Returns row `h` of the plane, ready for position(..).
  const T* row(int64_t h) {
    const int64_t slot = h % slots_;
    T* const to = values_ + slot * phases_ * length_;
    if (held_[slot] != h) {
      held_[slot] = h;
      for (int64_t phase = 0; phase < phases_; ++phase)
        split(plane_ + h * problem_.in.w, phase, to + phase * length_);
    }
    return to;
  }

  /// Returns the offset in a row at which the values of position kx begin.
  int64_t position(int64_t kx) const {
    const int64_t at = kx * problem_.window.dilation.w;
    return at % phases_ * length_ + at / phases_;
  }

 private:
  int64_t reach() const { return (problem_.window.kernel_size.w - 1) * problem_.window.dilation.w; }

  void split(const T* from, int64_t phase, T* to) const {
    const int64_t offset = phase - problem_.window.padding.w;
    const int64_t begin = divide_up(-offset, phases_);
    const int64_t end = smaller(length_, divide_up(problem_.in.w - offset, phases_));
    if (phases_ == 1) {
      for (int64_t i = begin; i < end; ++i) to[i] = from[i + offset];
    } else if (phases_ == 2) {  // by far the most frequent; for a constant the compiler makes shuffles
      for (int64_t i = begin; i < end; ++i) to[i] = from[i * 2 + offset];
    } else {
      for (int64_t i = begin; i < end; ++i) to[i] = from[i * phases_ + offset];
    }
  }

  const MaxPoolProblem& problem_;
  int64_t slots_, phases_, length_;
  int64_t* held_ = nullptr;  // (slots): the row that a slot holds, or -1
  T* values_ = nullptr;      // (slots, phases, length)
  const T* plane_ = nullptr;
};

template <class S>
int64_t forward_scratch(const MaxPoolProblem& problem) {
  return PhaseRows<S>(problem).bytes() +
         round_up(problem.out.w, S::kLanes) * static_cast<int64_t>(sizeof(typename S::Position));
}

template <class S>
void forward_planes(const MaxPoolProblem& problem, int64_t planes, const void* x, void* z, uint8_t* argmax,
                    void* scratch) {
  using T = typename S::T;
  using Position = typename S::Position;
  using Index = typename S::Index;
  const PoolWindow& window = problem.window;
  const Pair2 in = problem.in, out = problem.out;
  PhaseRows<S> rows(problem);
  rows.place_in(scratch);
  int64_t column[kMaxPoolPositions] = {};
  for (int64_t kx = 0; kx < window.kernel_size.w; ++kx) column[kx] = rows.position(kx);
  // The first kx inside of the image; -1 if there is none.
  auto* const first_kx = reinterpret_cast<Position*>(static_cast<char*>(scratch) + rows.bytes());
  for (int64_t ow = 0; ow < round_up(out.w, S::kLanes); ++ow) {
    const Inside w =
        inside(ow * window.stride.w - window.padding.w, window.kernel_size.w, window.dilation.w, in.w);
    first_kx[ow] = static_cast<Position>(w.first < w.last ? w.first : -1);
  }

  const T* from = static_cast<const T*>(x);
  T* to = static_cast<T*>(z);
  for (int64_t plane = 0; plane < planes; ++plane, from += in.h * in.w) {
    rows.begin_plane(from);
    for (int64_t oh = 0; oh < out.h; ++oh, to += out.w, argmax += argmax ? out.w : 0) {
      const int64_t ih = oh * window.stride.h - window.padding.h;
      const Inside y = inside(ih, window.kernel_size.h, window.dilation.h, in.h);
      const T* row[kMaxPoolPositions] = {};
      for (int64_t ky = y.first; ky < y.last; ++ky) row[ky] = rows.row(ih + ky * window.dilation.h);
      const auto first_ky = static_cast<Position>(y.first * window.kernel_size.w);
      for (int64_t ow = 0; ow < out.w; ow += S::kLanes) {
        const Index kx0 = load<Index>(first_kx + ow), none = Index{} + Position{kNoPosition};
        typename S::Best best(y.first < y.last ? (kx0 < 0 ? none : kx0 + first_ky) : none);
        for (int64_t ky = y.first; ky < y.last; ++ky)
          for (int64_t kx = 0; kx < window.kernel_size.w; ++kx)
            best.offer(load<typename S::V>(row[ky] + column[kx] + ow),
                       static_cast<Position>(ky * window.kernel_size.w + kx));
        const int64_t count = smaller(S::kLanes, out.w - ow);
        store_some(to + ow, best.value, count);
        if (argmax) store_positions<S>(argmax + ow, best.position, count);
      }
    }
  }
}

// True if dx is added up in place; false for 16-bit storage, whose sums are f32.
template <class S>
constexpr bool kSumsInPlace = sizeof(typename S::Sum) == sizeof(typename S::T);

template <class S>
int64_t backward_scratch(const MaxPoolProblem& problem) {
  if constexpr (kSumsInPlace<S>) return 0;
  return (problem.in.h * problem.in.w + problem.out.w) * static_cast<int64_t>(sizeof(typename S::Sum));
}

template <class S>
PALIMPSEST_HOST_DEVICE void widen_values(const typename S::T* from, int64_t values, typename S::Sum* to) {
  for (int64_t i = 0; i < values; i += S::kSumLanes) {
    const int64_t count = smaller(S::kSumLanes, values - i);
    store_some(to + i, S::sum(load_some<typename S::Part>(from + i, count)), count);
  }
}
template <class S>
PALIMPSEST_HOST_DEVICE void round_values(const typename S::Sum* from, int64_t values, typename S::T* to) {
  for (int64_t i = 0; i < values; i += S::kSumLanes) {
    const int64_t count = smaller(S::kSumLanes, values - i);
    store_some(to + i, S::rounded(load_some<typename S::Sums>(from + i, count)), count);
  }
}

// Scatters rather than gathers: one addition per output, however many windows overlap.
template <class S>
void backward_planes(const MaxPoolProblem& problem, int64_t planes, const void* dz, const uint8_t* argmax,
                     void* dx, void* scratch) {
  using T = typename S::T;
  using Sum = typename S::Sum;
  const PoolWindow& window = problem.window;
  const int64_t pixels = problem.in.h * problem.in.w;
  // The offset of each position from the window's first pixel; far outside for bytes that are no position.
  int64_t place[256];
  for (int64_t i = 0; i < 256; ++i)
    place[i] = i < window.positions() ? i / window.kernel_size.w * window.dilation.h * problem.in.w +
                                            i % window.kernel_size.w * window.dilation.w
                                      : INT64_MIN / 2;
  const T* from = static_cast<const T*>(dz);
  T* to = static_cast<T*>(dx);
  for (int64_t plane = 0; plane < planes; ++plane, to += pixels) {
    Sum* sums;
    if constexpr (kSumsInPlace<S>)
      sums = to;
    else
      sums = static_cast<Sum*>(scratch);
    __builtin_memset(sums, 0, static_cast<unsigned long>(pixels) * sizeof(Sum));
    for (int64_t oh = 0; oh < problem.out.h; ++oh, from += problem.out.w, argmax += problem.out.w) {
      const Sum* gradients;
      if constexpr (kSumsInPlace<S>) {
        gradients = from;
      } else {
        Sum* const row = sums + pixels;
        widen_values<S>(from, problem.out.w, row);
        gradients = row;
      }
      int64_t corner = (oh * window.stride.h - window.padding.h) * problem.in.w - window.padding.w;
      for (int64_t ow = 0; ow < problem.out.w; ++ow, corner += window.stride.w) {
        const int64_t at = corner + place[argmax[ow]];
        if (static_cast<uint64_t>(at) < static_cast<uint64_t>(pixels)) sums[at] += gradients[ow];
      }
    }
    if constexpr (!kSumsInPlace<S>) round_values<S>(sums, pixels, to);
  }
}

// ---- Channels-last: the channels of a pixel fill the vectors

/// The maxima so far of some neighbouring vectors of channels: four share the work of finding the window.
template <class S, int kVectors>
struct Maxima {
  using T = typename S::T;
  typename S::Best best;
  Maxima<S, kVectors - 1> rest;

  PALIMPSEST_HOST_DEVICE explicit Maxima(typename S::Position first)
      : best(typename S::Index{} + first), rest(first) {}
  PALIMPSEST_HOST_DEVICE void offer(const T* x, typename S::Position at, int64_t count) {
    best.offer(load_some<typename S::V>(x, count), at);
    rest.offer(x + S::kLanes, at, count);
  }
  PALIMPSEST_HOST_DEVICE void store(T* z, uint8_t* argmax, int64_t count) const {
    store_some(z, best.value, count);
    if (argmax) store_positions<S>(argmax, best.position, count);
    rest.store(z + S::kLanes, argmax ? argmax + S::kLanes : nullptr, count);
  }
};
template <class S>
struct Maxima<S, 0> {
  PALIMPSEST_HOST_DEVICE explicit Maxima(typename S::Position) {}
  PALIMPSEST_HOST_DEVICE void offer(const typename S::T*, typename S::Position, int64_t) {}
  PALIMPSEST_HOST_DEVICE void store(typename S::T*, uint8_t*, int64_t) const {}
};

/// The sums of backward: gradients of the windows whose maximum is `here`, for some neighbouring vectors.
template <class S, int kVectors>
struct Gradients {
  using T = typename S::T;
  typename S::Sums sum = S::sum(typename S::Part{});
  Gradients<S, kVectors - 1> rest;

  PALIMPSEST_HOST_DEVICE void add(const T* dz, const uint8_t* argmax, typename S::Position here,
                                  int64_t count) {
    const auto position = widened<sizeof(typename S::Position), S::kSumLanes>(
        load_some<Lanes<uint8_t, S::kSumLanes>>(argmax, count));
    const auto gradient = load_some<typename S::Part>(dz, count);
    sum += S::sum(position == here ? gradient : typename S::Part{});
    rest.add(dz + S::kSumLanes, argmax + S::kSumLanes, here, count);
  }
  PALIMPSEST_HOST_DEVICE void store(T* dx, int64_t count) const {
    store_some(dx, S::rounded(sum), count);
    rest.store(dx + S::kSumLanes, count);
  }
};
template <class S>
struct Gradients<S, 0> {
  PALIMPSEST_HOST_DEVICE void add(const typename S::T*, const uint8_t*, typename S::Position, int64_t) {}
  PALIMPSEST_HOST_DEVICE void store(typename S::T*, int64_t) const {}
};

template <int kVectors>
struct Vectors {};

/// Calls function(c, count, Vectors<k>{}) for k vectors from channel c on, `count` channels of each, until
/// all channels are covered. The last vector may overlap the one before it: both write the same values.
template <int64_t kLanes, class Function>
PALIMPSEST_HOST_DEVICE void for_channels(int64_t channels, const Function& function) {
  if (channels < kLanes) return function(int64_t{0}, channels, Vectors<1>{});
  int64_t c = 0;
  for (; c + 4 * kLanes <= channels; c += 4 * kLanes) function(c, kLanes, Vectors<4>{});
  for (; c < channels; c += kLanes) function(smaller(c, channels - kLanes), kLanes, Vectors<1>{});
}

template <class S>
void forward_rows(const MaxPoolProblem& problem, int64_t begin, int64_t end, const void* x, void* z,
                  uint8_t* argmax) {
  using T = typename S::T;
  using Position = typename S::Position;
  const PoolWindow& window = problem.window;
  const int64_t width = problem.in.w, channels = problem.c;
  const int64_t right_step = window.dilation.w * channels, down_step = window.dilation.h * width * channels;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t n = row / problem.out.h, ih = row % problem.out.h * window.stride.h - window.padding.h;
    const Inside y = inside(ih, window.kernel_size.h, window.dilation.h, problem.in.h);
    for (int64_t ow = 0; ow < problem.out.w; ++ow) {
      const int64_t iw = ow * window.stride.w - window.padding.w;
      // Away from the edges no divisions are needed; they take as long as a vector of channels.
      const Inside w = iw >= 0 && iw + (window.kernel_size.w - 1) * window.dilation.w < width
                           ? Inside{0, window.kernel_size.w}
                           : inside(iw, window.kernel_size.w, window.dilation.w, width);
      const bool empty = y.first >= y.last || w.first >= w.last;
      const auto first =
          static_cast<Position>(empty ? kNoPosition : y.first * window.kernel_size.w + w.first);
      const int64_t corner = ((n * problem.in.h + ih) * width + iw) * channels;
      const int64_t at = (row * problem.out.w + ow) * channels;
      for_channels<S::kLanes>(channels, [&]<int kVectors>(int64_t c, int64_t count,
                                                          Vectors<kVectors>) __attribute__((always_inline)) {
        Maxima<S, kVectors> maxima(first);
        for (int64_t ky = y.first; ky < y.last; ++ky) {
          const T* from = static_cast<const T*>(x) + corner + ky * down_step + w.first * right_step + c;
          for (int64_t kx = w.first; kx < w.last; ++kx, from += right_step)
            maxima.offer(from, static_cast<Position>(ky * window.kernel_size.w + kx), count);
        }
        maxima.store(static_cast<T*>(z) + at + c, argmax ? argmax + at + c : nullptr, count);
      });
    }
  }
}

// Gathers: each value of dx is written once, in the order of memory, and threads can share the rows.
template <class S>
void backward_rows(const MaxPoolProblem& problem, int64_t begin, int64_t end, Taps rows, Taps columns,
                   const void* dz, const uint8_t* argmax, void* dx) {
  using T = typename S::T;
  using Position = typename S::Position;
  const int64_t channels = problem.c;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t n = row / problem.in.h, ih = row % problem.in.h;
    for (int64_t iw = 0; iw < problem.in.w; ++iw) {
      const int64_t to = (row * problem.in.w + iw) * channels;
      for_channels<S::kSumLanes>(
          channels,
          [&]<int kVectors>(int64_t c, int64_t count, Vectors<kVectors>) __attribute__((always_inline)) {
            Gradients<S, kVectors> gradients;
            for (int32_t i = rows.first[ih]; i < rows.first[ih + 1]; ++i) {
              const Tap y = rows.taps[i];
              const int64_t window_row = (n * problem.out.h + y.out) * problem.out.w;
              for (int32_t k = columns.first[iw]; k < columns.first[iw + 1]; ++k) {
                const Tap w = columns.taps[k];
                const int64_t at = (window_row + w.out) * channels + c;
                gradients.add(static_cast<const T*>(dz) + at, argmax + at,
                              static_cast<Position>(y.position * problem.window.kernel_size.w + w.position),
                              count);
              }
            }
            gradients.store(static_cast<T*>(dx) + to + c, count);
          });
    }
  }
}

template <class S>
constexpr Sweeps kSweeps = {forward_scratch<S>, backward_scratch<S>, forward_planes<S>,
                            backward_planes<S>, forward_rows<S>,     backward_rows<S>};

}  // namespace

extern const Kernels kKernels = {kSweeps<F32Storage>, kSweeps<F64Storage>, kSweeps<F16Storage>,
                                 kSweeps<BF16Storage>};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::max_pool
