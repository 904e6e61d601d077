#include "palimpsest/kernels/abn.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/cpu/instruction_set.h"
#include "palimpsest/kernels/cpu/partition.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace palimpsest::kernels::cpu {
namespace {

// Below this many values, waking threads costs more than the work.
constexpr int64_t kSerialValues = 32768;

template <class T>
double value_or(const void* parameter, int64_t c, double absent) {
  return parameter ? static_cast<double>(static_cast<const T*>(parameter)[c]) : absent;
}

// Larger results are written past the caches: with its inputs, one of this size fills what a group of cores
// shares.
constexpr int64_t kCachedBytes = int64_t{16} << 20;

/// One call of a kernel: the partition of its tensor, and memory for what it finds per channel.
template <class T>
class Call {
 public:
  explicit Call(const AbnLayer& layer)
      : layer_(layer),
        partition_(layer.shape, layer.layout),
        sweeps_(partition_.planes() ? current_instruction_set().kernels<T>().plane
                                    : current_instruction_set().kernels<T>().columns),
        first_(scratch(0, partition_.segments() * layer.shape.c)),
        second_(scratch(1, partition_.segments() * layer.shape.c)) {
    for (int k = 0; k < 5; ++k) coefficients_[k] = reinterpret_cast<T*>(scratch(2 + k, layer.shape.c));
  }

  const Partition& partition() const { return partition_; }
  ActivationChoice activation() const { return {layer_.activation, layer_.activation_param}; }

  /// first(piece, segment) on every piece, then between(channel) on every channel, then second(piece): panel
  /// by panel where a panel is small or there are plenty, so that `second` finds it in cache; else sweep by
  /// sweep.
  template <class First, class Between, class Second>
  void two_sweeps(const First& first, const Between& between, const Second& second) {
    const int64_t panels = partition_.panels(), segments = partition_.segments();
    const auto sweep_first = [&](int64_t panel, int64_t segment) {
      first(partition_.piece(panel, segment), segment);
    };
    const auto channels = [&](int64_t panel) {
      const Piece piece = partition_.piece(panel, 0);
      for (int64_t c = piece.first_channel; c < piece.first_channel + piece.channels; ++c) between(c);
    };
    const auto sweep_second = [&](int64_t panel, int64_t segment) {
      second(partition_.piece(panel, segment));
    };
    if (partition_.planes() && (segments == 1 || panels >= 2 * max_threads())) {
      run(panels, [&](int64_t panel) {
        for (int64_t segment = 0; segment < segments; ++segment) sweep_first(panel, segment);
        channels(panel);
        for (int64_t segment = segments - 1; segment >= 0; --segment) sweep_second(panel, segment);
      });
    } else {
      const int64_t pieces = panels * segments;
      run(pieces, [&](int64_t i) { sweep_first(i % panels, i / panels); });
      run(panels, channels);
      run_backwards(pieces, [&](int64_t i) { sweep_second(i % panels, i / panels); });
    }
  }

  template <class Sweep>
  void one_sweep(const Sweep& sweep) {
    const int64_t panels = partition_.panels(), segments = partition_.segments();
    run(panels * segments, [&](int64_t i) { sweep(partition_.piece(i % panels, i / panels), i / panels); });
  }

  // ---- Statistics

  void moments(const Piece& piece, int64_t segment, const T* x) {
    const int64_t at = segment * layer_.shape.c + piece.first_channel;
    sweeps_.moments(piece.block, x + piece.offset, first_ + at, second_ + at);
  }

  /// mean and biased variance of a channel from those of its segments (Chan, Golub, LeVeque).
  void channel_moments(int64_t c, double& mean, double& var) const {
    double count = 0, squares = 0;
    mean = 0;
    for (int64_t segment = 0; segment < partition_.segments(); ++segment) {
      const int64_t at = segment * layer_.shape.c + c;
      const double added = static_cast<double>(partition_.values(segment));
      const double share = added / (count + added), delta = first_[at] - mean;
      mean += delta * share;
      squares += second_[at] + delta * delta * count * share;
      count += added;
    }
    var = squares / count;
  }

  void set_apply(int64_t c, double mean, double inv_std, const void* weight, const void* bias) {
    const double w = value_or<T>(weight, c, 1), b = value_or<T>(bias, c, 0);
    const double low = mean - static_cast<double>(static_cast<T>(mean));
    const double values[] = {mean, w * inv_std, b - low * w * inv_std, inv_std, -low * inv_std};
    for (int k = 0; k < 5; ++k) coefficients_[k][c] = static_cast<T>(values[k]);
  }

  void apply(const Piece& piece, const T* x, T* z, T* xhat) const {
    const auto at = [&](int k) { return coefficients_[k] + piece.first_channel; };
    sweeps_.apply(piece.block, activation(), {at(0), at(1), at(2), at(3), at(4)}, x + piece.offset,
                  z + piece.offset, xhat ? xhat + piece.offset : nullptr, destination(piece.block, x, z));
  }

  // ---- Gradients

  void set_bias(int64_t c, const void* bias) {
    coefficients_[0][c] = static_cast<T>(value_or<T>(bias, c, 0));
  }

  void reduce(const Piece& piece, int64_t segment, const T* z, const T* xhat, const T* dz) {
    const int64_t at = segment * layer_.shape.c + piece.first_channel;
    sweeps_.reduce(piece.block, activation(), coefficients_[0] + piece.first_channel, z + piece.offset,
                   xhat ? xhat + piece.offset : nullptr, dz + piece.offset, first_ + at, second_ + at);
  }

  void channel_sums(int64_t c, const void* weight, bool kept, T* sum_dy, T* sum_dy_xhat) const {
    double dy = 0, dy_t = 0;
    for (int64_t segment = 0; segment < partition_.segments(); ++segment) {
      dy += first_[segment * layer_.shape.c + c];
      dy_t += second_[segment * layer_.shape.c + c];
    }
    sum_dy[c] = static_cast<T>(dy);
    sum_dy_xhat[c] = static_cast<T>(kept ? dy_t : dy_t / value_or<T>(weight, c, 1));
  }

  void set_backward(int64_t c, const void* weight, double inv_std, double sum_dy, double sum_dy_xhat,
                    double m, bool kept) {
    const double w = value_or<T>(weight, c, 1);
    const double values[] = {w * inv_std, -(kept ? w : 1) * inv_std * sum_dy_xhat / m,
                             -w * inv_std * sum_dy / m};
    for (int k = 0; k < 3; ++k) coefficients_[1 + k][c] = static_cast<T>(values[k]);
  }

  void backward(const Piece& piece, const T* z, const T* xhat, const T* dz, T* dx) const {
    sweeps_.backward(piece.block, activation(), backward_coefficients(piece), z + piece.offset,
                     xhat ? xhat + piece.offset : nullptr, dz + piece.offset, dx + piece.offset,
                     destination(piece.block, dz, dx));
  }

  void backward_frozen(const Piece& piece, const T* z, const T* dz, T* dx) const {
    sweeps_.backward_frozen(piece.block, activation(), backward_coefficients(piece), z + piece.offset,
                            dz + piece.offset, dx + piece.offset, destination(piece.block, dz, dx));
  }

  template <class Function>
  void for_channels(const Function& function) {
    for (int64_t c = 0; c < layer_.shape.c; ++c) function(c);
  }

 private:
  // Past the caches only in whole lines, or in rows so long that their ends do not matter: at 14 x 14 pixels,
  // where each row begins and ends within a line, it cost half again as much as it saves elsewhere.
  Destination destination(const Block& block, const T* in, const T* out) const {
    constexpr int64_t kLine = 64, kLongRow = 1024;
    const auto in_lines = [](int64_t values) {
      return values * static_cast<int64_t>(sizeof(T)) % kLine == 0;
    };
    const bool whole_lines =
        in_lines(block.width) && in_lines(block.stride) && reinterpret_cast<uintptr_t>(out) % kLine == 0;
    const bool long_rows = block.width * static_cast<int64_t>(sizeof(T)) >= kLongRow;
    const bool large = layer_.shape.elements() * static_cast<int64_t>(sizeof(T)) > kCachedBytes;
    return large && in != out && (whole_lines || long_rows) ? Destination::kPastCaches : Destination::kCaches;
  }

  BackwardCoefficients<T> backward_coefficients(const Piece& piece) const {
    const auto at = [&](int k) { return coefficients_[k] + piece.first_channel; };
    return {at(0), at(1), at(2), at(3)};
  }

  template <class Body>
  void run_ranges(int64_t count, const Body& body) const {
    if (layer_.shape.elements() >= kSerialValues)
      parallel_ranges(count, body);
    else
      body(int64_t{0}, count);
  }

  template <class Task>
  void run(int64_t count, const Task& task) const {
    run_ranges(count, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) task(i);
    });
  }

  // Each thread takes its share from the end, where the caches still hold what it has just read.
  template <class Task>
  void run_backwards(int64_t count, const Task& task) const {
    run_ranges(count, [&](int64_t begin, int64_t end) {
      for (int64_t i = end - 1; i >= begin; --i) task(i);
    });
  }

  // Kept by the thread between calls: fresh memory of this size would cost more page faults than a small
  // layer's maths.
  static double* scratch(int which, int64_t size) {
    thread_local std::vector<double> kept[7];
    if (static_cast<int64_t>(kept[which].size()) < size) kept[which].resize(static_cast<std::size_t>(size));
    return kept[which].data();
  }

  const AbnLayer& layer_;
  Partition partition_;
  const AbnSweeps<T>& sweeps_;
  double* first_;       // (segments, C): means, or sums of dy
  double* second_;      // (segments, C): squared deviations, or sums of dy * t
  T* coefficients_[5];  // (C) each
};

}  // namespace

void abn_statistics(const AbnLayer& layer, const void* x, void* mean, void* var) {
  dispatch_float(layer.dtype, [&]<class T>() {
    Call<T> call(layer);
    const T* in = static_cast<const T*>(x);
    call.one_sweep([&](const Piece& piece, int64_t segment) { call.moments(piece, segment, in); });
    call.for_channels([&](int64_t c) {
      double exact_mean, exact_var;
      call.channel_moments(c, exact_mean, exact_var);
      static_cast<T*>(mean)[c] = static_cast<T>(exact_mean);
      static_cast<T*>(var)[c] = static_cast<T>(exact_var);
    });
  });
}

void abn_apply(const AbnLayer& layer, const void* x, const void* mean, const void* inv_std,
               const void* weight, const void* bias, void* z, void* xhat) {
  dispatch_float(layer.dtype, [&]<class T>() {
    Call<T> call(layer);
    const T* in = static_cast<const T*>(x);
    call.for_channels([&](int64_t c) {
      call.set_apply(c, static_cast<const T*>(mean)[c], static_cast<const T*>(inv_std)[c], weight, bias);
    });
    call.one_sweep([&](const Piece& piece, int64_t) {
      call.apply(piece, in, static_cast<T*>(z), static_cast<T*>(xhat));
    });
  });
}

void abn_forward(const AbnLayer& layer, double eps, const void* x, const void* weight, const void* bias,
                 void* z, void* xhat, void* mean, void* var, void* inv_std) {
  dispatch_float(layer.dtype, [&]<class T>() {
    Call<T> call(layer);
    const T* in = static_cast<const T*>(x);
    call.two_sweeps(
        [&](const Piece& piece, int64_t segment) { call.moments(piece, segment, in); },
        [&](int64_t c) {
          double exact_mean, exact_var;
          call.channel_moments(c, exact_mean, exact_var);
          const double r = 1 / std::sqrt(exact_var + eps);
          static_cast<T*>(mean)[c] = static_cast<T>(exact_mean);
          static_cast<T*>(var)[c] = static_cast<T>(exact_var);
          static_cast<T*>(inv_std)[c] = static_cast<T>(r);
          call.set_apply(c, exact_mean, r, weight, bias);
        },
        [&](const Piece& piece) { call.apply(piece, in, static_cast<T*>(z), static_cast<T*>(xhat)); });
  });
}

void abn_backward_reduce(const AbnLayer& layer, const void* z, const void* xhat, const void* dz,
                         const void* weight, const void* bias, void* sum_dy, void* sum_dy_xhat) {
  dispatch_float(layer.dtype, [&]<class T>() {
    Call<T> call(layer);
    call.for_channels([&](int64_t c) { call.set_bias(c, bias); });
    call.one_sweep([&](const Piece& piece, int64_t segment) {
      call.reduce(piece, segment, static_cast<const T*>(z), static_cast<const T*>(xhat),
                  static_cast<const T*>(dz));
    });
    call.for_channels([&](int64_t c) {
      call.channel_sums(c, weight, xhat != nullptr, static_cast<T*>(sum_dy), static_cast<T*>(sum_dy_xhat));
    });
  });
}

void abn_backward_apply(const AbnLayer& layer, const void* z, const void* xhat, const void* dz,
                        const void* weight, const void* bias, const void* inv_std, const void* sum_dy,
                        const void* sum_dy_xhat, double m, void* dx) {
  dispatch_float(layer.dtype, [&]<class T>() {
    Call<T> call(layer);
    const T* out = static_cast<const T*>(z);
    const T* gradient = static_cast<const T*>(dz);
    const bool frozen = !sum_dy || !sum_dy_xhat;
    call.for_channels([&](int64_t c) {
      call.set_bias(c, bias);
      call.set_backward(c, weight, static_cast<const T*>(inv_std)[c],
                        value_or<T>(frozen ? nullptr : sum_dy, c, 0),
                        value_or<T>(frozen ? nullptr : sum_dy_xhat, c, 0), m, xhat != nullptr);
    });
    call.one_sweep([&](const Piece& piece, int64_t) {
      if (frozen)
        call.backward_frozen(piece, out, gradient, static_cast<T*>(dx));
      else
        call.backward(piece, out, static_cast<const T*>(xhat), gradient, static_cast<T*>(dx));
    });
  });
}

void abn_backward(const AbnLayer& layer, const void* z, const void* xhat, const void* dz, const void* weight,
                  const void* bias, const void* inv_std, void* sum_dy, void* sum_dy_xhat, void* dx) {
  dispatch_float(layer.dtype, [&]<class T>() {
    Call<T> call(layer);
    const T* out = static_cast<const T*>(z);
    const T* kept = static_cast<const T*>(xhat);
    const T* gradient = static_cast<const T*>(dz);
    const double m = static_cast<double>(layer.shape.per_channel());
    call.for_channels([&](int64_t c) { call.set_bias(c, bias); });
    call.two_sweeps(
        [&](const Piece& piece, int64_t segment) { call.reduce(piece, segment, out, kept, gradient); },
        [&](int64_t c) {
          T* dy = static_cast<T*>(sum_dy);
          T* dy_xhat = static_cast<T*>(sum_dy_xhat);
          call.channel_sums(c, weight, kept != nullptr, dy, dy_xhat);
          call.set_backward(c, weight, static_cast<const T*>(inv_std)[c], dy[c], dy_xhat[c], m,
                            kept != nullptr);
        },
        [&](const Piece& piece) { call.backward(piece, out, kept, gradient, static_cast<T*>(dx)); });
  });
}

const char* instruction_set() {
  return current_instruction_set().name;
}

}  // namespace palimpsest::kernels::cpu
