#include "palimpsest/kernels/abn.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/cpu/abn/partition.h"
#include "palimpsest/kernels/cpu/dispatch.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
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

/// One call of a kernel over storage in S: the partition of its tensor, and memory for what it finds per
/// channel.
template <class S>
class Call {
  using T = accumulate_t<S>;

 public:
  explicit Call(const AbnProblem& layer)
      : layer_(layer),
        partition_(layer.shape, layer.layout),
        sweeps_(sweeps(partition_.geometry())),
        first_(scratch(0, partition_.segments() * layer.shape.c)),
        second_(scratch(1, partition_.segments() * layer.shape.c)) {
    for (int k = 0; k < kCoefficients; ++k)
      coefficients_[k] = reinterpret_cast<T*>(scratch(2 + k, layer.shape.c));
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
    if (partition_.geometry() != Geometry::kColumns && (segments == 1 || panels >= 2 * max_threads())) {
      run(panels, [&](int64_t panel) {
        for (int64_t segment = 0; segment < segments; ++segment) sweep_first(panel, segment);
        channels(panel);
        for (int64_t segment = segments - 1; segment >= 0; --segment) sweep_second(panel, segment);
      });
    } else {
      const int64_t pieces = panels * segments;
      run(pieces, [&](int64_t i) { sweep_first(i % panels, i / panels); });
      run(layer_.shape.c, between);  // not by panel: often there is one, and this is a tenth of the time
      run_backwards(pieces, [&](int64_t i) { sweep_second(i % panels, i / panels); });
    }
  }

  template <class Sweep>
  void one_sweep(const Sweep& sweep) {
    const int64_t panels = partition_.panels(), segments = partition_.segments();
    run(panels * segments, [&](int64_t i) { sweep(partition_.piece(i % panels, i / panels), i / panels); });
  }

  // ---- Statistics

  void moments(const Piece& piece, int64_t segment, const S* x) {
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

  // ---- Forward

  /// From x: y, or x-hat where that is kept.
  void set_apply(int64_t c, const AbnForward& t) {
    const double w = value_or<T>(t.weight, c, 1), b = value_or<T>(t.bias, c, 0);
    const bool normalized = keep() == Keep::kNormalized;
    const double scale = (normalized ? 1 : w) * t.inv_std[c], low = low_part(t.mean[c]);
    set(c, {t.mean[c], scale, (normalized ? 0 : b) - low * scale, w, b});
  }

  /// From what was kept: y. Adding -0 changes nothing, not even a zero's sign.
  void set_rebuild(int64_t c, const AbnForward& t) {
    if (layer_.saved == Saved::kInput) return set_apply(c, t);
    if (layer_.saved == Saved::kNormalized)
      set(c, {0, value_or<T>(t.weight, c, 1), value_or<T>(t.bias, c, 0), 0, 0});
    else
      set(c, {0, 1, -0.0, 0, 0});
  }

  void apply(const Piece& piece, const AbnForward& t) const {
    const bool apart = keep() == Keep::kPreActivation || keep() == Keep::kNormalized;
    apply(piece, t, static_cast<const S*>(t.x), apart ? static_cast<S*>(t.saved_values) : nullptr, keep());
  }

  void rebuild(const Piece& piece, const AbnForward& t) const {
    apply(piece, t, static_cast<const S*>(t.saved_values), nullptr, Keep::kNothing);
  }

  // ---- Gradients

  /// What turns the kept tensor into y and t (see BackwardCoefficients); the rest is known after the sums.
  void set_reduce(int64_t c, const AbnBackward& t) {
    const double w = value_or<T>(t.weight, c, 1), b = value_or<T>(t.bias, c, 0);
    switch (layer_.saved) {
      case Saved::kOutput:
      case Saved::kOutputBit:
      case Saved::kPreActivation:
        return set(c, {b, 0, 0});
      case Saved::kOutputForm1:
        return set(c, {b, 1 / w, 0});
      case Saved::kNormalized:
        return set(c, {0, w, b});
      case Saved::kInput: {
        const double scale = w * t.inv_std[c];
        return set(c, {t.mean[c], scale, b - low_part(t.mean[c]) * scale});
      }
    }
  }

  void reduce(const Piece& piece, int64_t segment, const AbnBackward& t) {
    const int64_t at = segment * layer_.shape.c + piece.first_channel;
    sweeps_.reduce(piece.block, activation(), from(), backward_coefficients(piece),
                   gradient_tensors(piece, t), first_ + at, second_ + at);
  }

  void channel_sums(int64_t c, const AbnBackward& t) const {
    double dy = 0, dy_t = 0;
    for (int64_t segment = 0; segment < partition_.segments(); ++segment) {
      dy += first_[segment * layer_.shape.c + c];
      dy_t += second_[segment * layer_.shape.c + c];
    }
    const Normalizer n = normalizer(c, t);
    static_cast<T*>(t.sum_dy)[c] = static_cast<T>(dy);
    static_cast<T*>(t.sum_dy_xhat)[c] = static_cast<T>((dy_t - n.offset * dy) * n.scale);
  }

  /// dx = w r (dy - sum_dy / m - xhat sum_dy_xhat / m), sorted by dy, t and neither.
  void set_backward(int64_t c, const AbnBackward& t, double m) {
    const double wr = value_or<T>(t.weight, c, 1) * t.inv_std[c];
    const double mean_dy = value_or<T>(t.sum_dy, c, 0) / m,
                 mean_dy_xhat = value_or<T>(t.sum_dy_xhat, c, 0) / m;
    // Where t = w * xhat, the weight cancels rather than being divided by.
    const bool scaled = layer_.saved == Saved::kOutput || layer_.saved == Saved::kOutputBit ||
                        layer_.saved == Saved::kPreActivation;
    const double per_t = -mean_dy_xhat * (scaled ? t.inv_std[c] : wr * normalizer(c, t).scale);
    const double offset = scaled ? 0 : normalizer(c, t).offset;
    const double values[] = {wr, per_t, -wr * mean_dy - per_t * offset};
    for (int k = 0; k < 3; ++k) coefficients_[3 + k][c] = static_cast<T>(values[k]);
  }

  void backward(const Piece& piece, const AbnBackward& t) const {
    S* const dx = static_cast<S*>(t.dx);
    S* const dresidual = static_cast<S*>(t.dresidual);
    S* const z = static_cast<S*>(t.z);
    sweeps_.backward(
        piece.block, activation(), from(), is_frozen(t), backward_coefficients(piece),
        gradient_tensors(piece, t),
        {dx + piece.offset, dresidual ? dresidual + piece.offset : nullptr, z ? z + piece.offset : nullptr},
        destination(piece.block, static_cast<const S*>(t.dz), dx));
  }

  static bool is_frozen(const AbnBackward& t) { return !t.sum_dy || !t.sum_dy_xhat; }

  template <class Function>
  void for_channels(const Function& function) {
    for (int64_t c = 0; c < layer_.shape.c; ++c) function(c);
  }

 private:
  static constexpr int kCoefficients = 6;

  /// xhat = (t - offset) * scale.
  struct Normalizer {
    double offset, scale;
  };
  Normalizer normalizer(int64_t c, const AbnBackward& t) const {
    if (layer_.saved == Saved::kInput) return {low_part(t.mean[c]), t.inv_std[c]};
    const bool is_xhat = layer_.saved == Saved::kNormalized || layer_.saved == Saved::kOutputForm1;
    return {0, is_xhat ? 1 : 1 / value_or<T>(t.weight, c, 1)};
  }

  /// What of a mean does not fit into a T.
  static double low_part(double mean) { return mean - static_cast<double>(static_cast<T>(mean)); }

  Keep keep() const {
    return layer_.saved == Saved::kPreActivation ? Keep::kPreActivation
           : layer_.saved == Saved::kNormalized  ? Keep::kNormalized
           : layer_.saved == Saved::kOutputBit   ? Keep::kBranch
                                                 : Keep::kNothing;
  }

  From from() const {
    return layer_.saved == Saved::kOutput          ? From::kOutput
           : layer_.saved == Saved::kOutputForm1   ? From::kNormalized
           : layer_.saved == Saved::kOutputBit     ? From::kBranch
           : layer_.saved == Saved::kPreActivation ? From::kPreActivation
                                                   : From::kBefore;
  }

  void set(int64_t c, std::initializer_list<double> values) {
    int k = 0;
    for (const double value : values) coefficients_[k++][c] = static_cast<T>(value);
  }

  Residual<S> residual(const Piece& piece, const void* values) const {
    return {values ? static_cast<const S*>(values) + piece.offset : nullptr, layer_.relu_residual};
  }

  void apply(const Piece& piece, const AbnForward& t, const S* from, S* kept, Keep keep) const {
    const auto at = [&](int k) { return coefficients_[k] + piece.first_channel; };
    S* const z = static_cast<S*>(t.z);
    sweeps_.apply(piece.block, activation(), keep, {at(0), at(1), at(2), at(3), at(4)},
                  {from + piece.offset,
                   residual(piece, t.residual),
                   z + piece.offset,
                   kept ? kept + piece.offset : nullptr,
                   {t.branch, piece.offset}},
                  destination(piece.block, from, z));
  }

  GradientTensors<S> gradient_tensors(const Piece& piece, const AbnBackward& t) const {
    return {static_cast<const S*>(t.saved_values) + piece.offset,
            residual(piece, t.residual),
            static_cast<const S*>(t.dz) + piece.offset,
            {t.branch, piece.offset}};
  }

  BackwardCoefficients<T> backward_coefficients(const Piece& piece) const {
    const auto at = [&](int k) { return coefficients_[k] + piece.first_channel; };
    return {at(0), at(1), at(2), at(3), at(4), at(5)};
  }

  // Past the caches only in whole lines, or in rows so long that their ends do not matter: at 14 x 14 pixels,
  // where each row begins and ends within a line, it cost half again as much as it saves elsewhere.
  Destination destination(const Block& block, const S* in, const S* out) const {
    constexpr int64_t kLine = 64, kLongRow = 1024;
    const auto in_lines = [](int64_t values) {
      return values * static_cast<int64_t>(sizeof(S)) % kLine == 0;
    };
    const bool whole_lines =
        in_lines(block.width) && in_lines(block.stride) && reinterpret_cast<uintptr_t>(out) % kLine == 0;
    const bool long_rows = block.width * static_cast<int64_t>(sizeof(S)) >= kLongRow;
    const bool large = layer_.shape.elements() * static_cast<int64_t>(sizeof(S)) > kCachedBytes;
    return large && in != out && (whole_lines || long_rows) ? Destination::kPastCaches : Destination::kCaches;
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

  static const AbnSweeps<S>& sweeps(Geometry geometry) {
    const AbnKernels<S>& kernels = current_instruction_set().abn<S>();
    return geometry == Geometry::kPlane   ? kernels.plane
           : geometry == Geometry::kStrip ? kernels.strip
                                          : kernels.columns;
  }

  // Saved by the thread between calls: fresh memory of this size would cost more page faults than a small
  // layer's maths.
  static double* scratch(int which, int64_t size) {
    thread_local std::vector<double> kept[2 + kCoefficients];
    if (static_cast<int64_t>(kept[which].size()) < size) kept[which].resize(static_cast<std::size_t>(size));
    return kept[which].data();
  }

  const AbnProblem& layer_;
  Partition partition_;
  const AbnSweeps<S>& sweeps_;
  double* first_;                   // (segments, C): means, or sums of dy
  double* second_;                  // (segments, C): squared deviations, or sums of dy * t
  T* coefficients_[kCoefficients];  // (C) each
};

}  // namespace

void abn_statistics(const AbnProblem& layer, const void* x, double* mean, double* var) {
  dispatch_float(layer.dtype, [&]<class S>() {
    Call<S> call(layer);
    call.one_sweep(
        [&](const Piece& piece, int64_t segment) { call.moments(piece, segment, static_cast<const S*>(x)); });
    call.for_channels([&](int64_t c) { call.channel_moments(c, mean[c], var[c]); });
  });
}

void abn_apply(const AbnProblem& layer, const AbnForward& t) {
  dispatch_float(layer.dtype, [&]<class S>() {
    Call<S> call(layer);
    call.for_channels([&](int64_t c) { call.set_apply(c, t); });
    call.one_sweep([&](const Piece& piece, int64_t) { call.apply(piece, t); });
  });
}

void abn_forward(const AbnProblem& layer, double eps, const AbnForward& t) {
  dispatch_float(layer.dtype, [&]<class S>() {
    Call<S> call(layer);
    call.two_sweeps([&](const Piece& piece,
                        int64_t segment) { call.moments(piece, segment, static_cast<const S*>(t.x)); },
                    [&](int64_t c) {
                      call.channel_moments(c, t.mean[c], t.var[c]);
                      t.inv_std[c] = 1 / std::sqrt(t.var[c] + eps);
                      call.set_apply(c, t);
                    },
                    [&](const Piece& piece) { call.apply(piece, t); });
  });
}

void abn_recompute_output(const AbnProblem& layer, const AbnForward& t) {
  dispatch_float(layer.dtype, [&]<class S>() {
    Call<S> call(layer);
    call.for_channels([&](int64_t c) { call.set_rebuild(c, t); });
    call.one_sweep([&](const Piece& piece, int64_t) { call.rebuild(piece, t); });
  });
}

void abn_backward_reduce(const AbnProblem& layer, const AbnBackward& t) {
  dispatch_float(layer.dtype, [&]<class S>() {
    Call<S> call(layer);
    call.for_channels([&](int64_t c) { call.set_reduce(c, t); });
    call.one_sweep([&](const Piece& piece, int64_t segment) { call.reduce(piece, segment, t); });
    call.for_channels([&](int64_t c) { call.channel_sums(c, t); });
  });
}

void abn_backward_apply(const AbnProblem& layer, const AbnBackward& t, double m) {
  dispatch_float(layer.dtype, [&]<class S>() {
    Call<S> call(layer);
    AbnBackward sums = t;
    if (Call<S>::is_frozen(t)) sums.sum_dy = sums.sum_dy_xhat = nullptr;
    call.for_channels([&](int64_t c) {
      call.set_reduce(c, t);
      call.set_backward(c, sums, m);
    });
    call.one_sweep([&](const Piece& piece, int64_t) { call.backward(piece, t); });
  });
}

void abn_backward(const AbnProblem& layer, const AbnBackward& t) {
  dispatch_float(layer.dtype, [&]<class S>() {
    Call<S> call(layer);
    const double m = static_cast<double>(layer.shape.per_channel());
    call.for_channels([&](int64_t c) { call.set_reduce(c, t); });
    call.two_sweeps([&](const Piece& piece, int64_t segment) { call.reduce(piece, segment, t); },
                    [&](int64_t c) {
                      call.channel_sums(c, t);
                      call.set_backward(c, t, m);
                    },
                    [&](const Piece& piece) { call.backward(piece, t); });
  });
}

}  // namespace palimpsest::kernels::cpu
