#pragma once

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/channel_slots.h"
#include "palimpsest/kernels/cpu/abn/partition.h"
#include "palimpsest/kernels/cpu/abn/slotted_channels.h"
#include "palimpsest/kernels/cpu/abn/table.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "palimpsest/kernels/formulas/abn_formulas.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace palimpsest::kernels::cpu::abn {

// Below this many values, waking threads costs more than the work.
inline constexpr int64_t kSerialValues = 16384;

/// The channels [begin, end).
struct Channels {
  int64_t begin, end;

  template <class Function>
  void each(const Function& function) const {
    for (int64_t c = begin; c < end; ++c) function(c);
  }
};

/// One call of a kernel over storage in S: the partition of its tensor, and memory for sums and coefficients
/// per channel.
template <class S>
class Call {
  using T = accumulate_t<S>;

 public:
  explicit Call(const AbnProblem& problem, const NormalizedChannels& normalized = {})
      : problem_(problem),
        x_hat_(static_cast<S*>(normalized.values)),
        slotted_(problem.shape, normalized),
        partition_(problem.shape, problem.layout, problem.dtype),
        sweeps_(sweeps(partition_.geometry())),
        columns_(problem.shape.c * partition_.pixels_per_row()),
        first_(scratch(0, partition_.segments() * columns_)),
        second_(scratch(1, partition_.segments() * columns_)) {
    for (int k = 0; k < kCoefficients; ++k) coefficients_[k] = reinterpret_cast<T*>(scratch(2 + k, columns_));
  }

  /// Calls before(channels) for ranges that make up all channels, first(piece, segment) for every piece,
  /// between(channels), and second(piece): panel by panel where a panel is one piece or planes are numerous, so that
  /// `second` finds its panel in cache; else sweep by sweep.
  template <class Before, class First, class Between, class Second>
  void two_sweeps(const Before& before, const First& first, const Between& between, const Second& second) {
    const int64_t panels = partition_.panels(), segments = partition_.segments();
    const auto sweep_first = [&](int64_t panel, int64_t segment) {
      first(for_first_sweep(partition_.piece(panel, segment)), segment);
    };
    const auto channels = [&](int64_t panel) {
      if (partition_.pixels_per_row() > 1) return Channels{0, problem_.shape.c};
      const Piece piece = partition_.piece(panel, 0);
      return Channels{piece.first_channel, piece.first_channel + piece.channels};
    };
    const auto sweep_second = [&](int64_t panel, int64_t segment, bool next_channel_follows) {
      second(before_next_channel(partition_.piece(panel, segment), next_channel_follows));
    };
    const bool many = partition_.geometry() != Geometry::kColumns && panels >= 2 * max_threads();
    if (segments == 1 || many) {
      run(panels, [&](int64_t panel, bool another_follows) {
        before(channels(panel));
        for (int64_t segment = 0; segment < segments; ++segment) sweep_first(panel, segment);
        between(channels(panel));
        for (int64_t segment = segments - 1; segment >= 0; --segment)
          sweep_second(panel, segment, another_follows && segment == 0);
      });
    } else {
      const int64_t pieces = panels * segments;
      for_channels(before);
      run(pieces, [&](int64_t i, bool) { sweep_first(i % panels, i / panels); });
      for_channels(between);  // there may be one panel, and this is a tenth of the time
      run_backwards(pieces,
                    [&](int64_t i) { sweep_second(i % panels, i / panels, /*next_channel_follows=*/false); });
    }
  }

  /// Calls function(channels) for ranges that make up all channels.
  template <class Function>
  void for_channels(const Function& function) const {
    constexpr int64_t kSerialChannels = 256;  // less work than waking threads
    if (problem_.shape.c < kSerialChannels) return function(Channels{0, problem_.shape.c});
    run_ranges(problem_.shape.c, [&](int64_t begin, int64_t end) { function(Channels{begin, end}); });
  }

  /// Calls sweep(piece, segment) for every piece, channel by channel in the same images.
  template <class Sweep>
  void one_sweep(const Sweep& sweep) {
    const int64_t panels = partition_.panels(), segments = partition_.segments();
    run(panels * segments, [&](int64_t i, bool another_follows) {
      const int64_t panel = i % panels, segment = i / panels;
      sweep(before_next_channel(partition_.piece(panel, segment), another_follows && panel + 1 < panels),
            segment);
    });
  }

  /// The piece for sums that another sweep over it follows. That sweep prefetches the next strip (values_ahead), so the
  /// sums need not.
  static Piece for_first_sweep(Piece piece) {
    if (piece.block.plane > 0) piece.block.next = 0;
    return piece;
  }

  /// The piece, whose planes prefetch those of the next channel if the thread takes them next. While a sweep finds its
  /// planes in a cache, memory is idle, and the next sweep would wait for it at each row. (32, 512, 28, 28) in bf16 on
  /// a Zen 4, two threads, forward and backward: 3.7 -> 2.8 ms.
  Piece before_next_channel(Piece piece, bool follows) const {
    if (partition_.geometry() == Geometry::kPlane) piece.block.next = follows ? problem_.shape.s : 0;
    return piece;
  }

  /// The sweep of a call that follows one over the same tensor. It takes columns from the end, where the caches hold
  /// what that call read. It takes planes from the beginning: the next line, which the processor prefetches, is then
  /// the next plane's. Before it was prefetched, (32, 1024, 14, 14) in bf16 took 3.7 ms from the end, not 1.6.
  template <class Sweep>
  void second_sweep(const Sweep& sweep) {
    if (partition_.geometry() != Geometry::kColumns)
      return one_sweep([&](const Piece& piece, int64_t) { sweep(piece); });
    const int64_t panels = partition_.panels();
    run_backwards(panels * partition_.segments(),
                  [&](int64_t i) { sweep(partition_.piece(i % panels, i / panels)); });
  }

  // ---- Statistics

  void moments(const Piece& piece, int64_t segment, const S* x) {
    const int64_t at = segment * columns_ + piece.first_channel;
    sweeps_.moments(piece.block, x + piece.offset, first_ + at, second_ + at);
  }

  /// Computes mean and biased variance of channels from those of their parts (Chan, Golub, LeVeque).
  void channel_moments(Channels channels, double* mean, double* var) const {
    for (int64_t c = channels.begin; c < channels.end; ++c) mean[c] = var[c] = 0;
    double count = 0;
    for_parts([&](int64_t segment, const double* means, const double* squares) {
      const double added = static_cast<double>(partition_.values(segment)), share = added / (count + added);
      for (int64_t c = channels.begin; c < channels.end; ++c) {
        const double delta = means[c] - mean[c];
        mean[c] += delta * share;
        var[c] += squares[c] + delta * delta * count * share;
      }
      count += added;
    });
    for (int64_t c = channels.begin; c < channels.end; ++c) var[c] /= count;
  }

  // ---- Forward

  void set_forward(Channels channels, const AbnForward& forward) {
    set(channels, [&](int64_t c) { return forward_coefficients(problem_.saved, channel(c, forward)); });
  }

  void set_recompute(Channels channels, const AbnForward& forward) {
    set(channels, [&](int64_t c) { return recompute_coefficients(problem_.saved, channel(c, forward)); });
  }

  void apply(const Piece& piece, const AbnForward& forward) const {
    if (slotted_.any())  // before z may be written over x
      slotted_.each_run(piece, [&](const Piece& some, bool is_slotted) {
        if (is_slotted) normalize(some, forward);
      });
    in_cache(piece, forward.x_part, kFirstLevel, [&](const Piece& some) {
      // The sweep over a part prefetches the pixels of the next one.
      const bool is_first = some.offset == piece.offset;
      if (forward.x_part.part)
        gather_pixels(problem_, pixels(some), forward.x_part, forward.x, /*prefetch=*/is_first);
      apply(some, forward, static_cast<const S*>(forward.x), forward_kind(problem_.saved));
    });
  }

  void recompute(const Piece& piece, const AbnForward& forward) const {
    apply(piece, forward, static_cast<const S*>(forward.saved_values), Saved::kOutput);
  }

  // ---- Gradients

  void set_center(Channels channels, const AbnBackward& backward) {
    set(channels, [&](int64_t c) { return center_coefficients(saved_of(c), channel(c, backward)); });
  }

  void reduce(const Piece& piece, int64_t segment, const AbnBackward& backward) {
    const int64_t at = segment * columns_ + piece.first_channel, width = piece.block.width;
    double *const dy = first_ + at, *const dy_t = second_ + at;
    if (slotted_.any()) {
      return slotted_.each_run(piece, [&](const Piece& some, bool is_slotted) {
        const int64_t to = some.first_channel - piece.first_channel;
        is_slotted ? reduce_slotted(some, backward, dy + to, dy_t + to)
                   : reduce(some, backward, dy + to, dy_t + to);
      });
    }
    if (!backward.dz_part.part) return reduce(piece, backward, dy, dy_t);
    double part_dy[kMaxColumns], part_dy_t[kMaxColumns];
    for (int64_t j = 0; j < width; ++j) dy[j] = dy_t[j] = 0;
    // In the parts of the sum itself, so that the result is that without copies, bit for bit.
    const int64_t rows = rows_per_sum<S>(piece.block.rows);
    const bool is_large = rows * width * static_cast<int64_t>(sizeof(S)) > 4 * kSecondLevel;
    in_parts(piece, rows, [&](const Piece& some) {
      reduce(some, backward, part_dy, part_dy_t);
      for (int64_t j = 0; j < width; ++j) dy[j] += part_dy[j], dy_t[j] += part_dy_t[j];
      gather_pixels(problem_, pixels(some), backward.dz_part, backward.dz, /*prefetch=*/is_large);
    });
  }

  void channel_sums(Channels channels, const AbnBackward& backward) const {
    constexpr int64_t kTogether = 512;
    double dy[kTogether], dy_t[kTogether];
    for (int64_t begin = channels.begin; begin < channels.end; begin += kTogether) {
      const int64_t count = std::min(kTogether, channels.end - begin);
      for (int64_t i = 0; i < count; ++i) dy[i] = dy_t[i] = 0;
      for_parts([&](int64_t, const double* first, const double* second) {
        for (int64_t i = 0; i < count; ++i) {
          dy[i] += first[begin + i];
          dy_t[i] += second[begin + i];
        }
      });
      for (int64_t i = 0; i < count; ++i) {
        const int64_t c = begin + i;
        static_cast<T*>(backward.sum_dy)[c] = static_cast<T>(dy[i]);
        static_cast<T*>(backward.sum_dy_xhat)[c] =
            static_cast<T>(normalizer(saved_of(c), channel(c, backward)).sum_dy_xhat(dy[i], dy_t[i]));
      }
    }
  }

  void set_input_gradient(Channels channels, const AbnBackward& backward, double m) {
    const bool frozen = backward.frozen_statistics;
    set(channels, [&](int64_t c) {
      const auto mean = [&](const void* sums) {
        return frozen ? 0 : static_cast<double>(static_cast<const T*>(sums)[c]) / m;
      };
      const Saved saved = saved_of(c);
      auto k = input_gradient_coefficients(saved, channel(c, backward), mean(backward.sum_dy),
                                           mean(backward.sum_dy_xhat));
      if (kUncentered && !frozen) {
        const auto of_t = center_coefficients(saved, channel(c, backward));
        const T scale = saved == Saved::kOutputForm1 ? of_t.scale : T(1);
        k.constant = uncentered_shift(static_cast<T>(of_t.center * scale), k.per_t, k.constant);
      }
      return k;
    });
  }

  void backward(const Piece& piece, const AbnBackward& backward) const {
    if (slotted_.any()) {
      AbnBackward without_z = backward;
      without_z.z = nullptr;
      slotted_.each_run(piece, [&](const Piece& some, bool is_slotted) {
        is_slotted ? backward_of_slotted(some, backward) : run_backward(some, without_z);
      });
      if (backward.z) recompute_whole(piece, backward);
      return;
    }
    in_cache(piece, backward.dx_part, kSecondLevel, [&](const Piece& some) {
      run_backward(some, backward);
      if (backward.dx_part.part) scatter_pixels(problem_, pixels(some), backward.dx_part, backward.dx);
    });
  }

 private:
  static constexpr int kCoefficients = 6;
  static constexpr bool kUncentered = sizeof(S) == 2;  // the sweeps do not subtract the center (Affine)

  void reduce(const Piece& piece, const AbnBackward& backward, double* sum_dy, double* sum_dy_t) const {
    sweeps_.reduce(piece.block, activation(), backward_kind(problem_.saved), backward_coefficients(piece),
                   gradient_tensors(piece, backward), sum_dy, sum_dy_t);
  }

  void run_backward(const Piece& piece, const AbnBackward& backward) const {
    S* const dx = static_cast<S*>(backward.dx);
    S* const dresidual = static_cast<S*>(backward.dresidual);
    S* const z = static_cast<S*>(backward.z);
    const S* const dz = static_cast<const S*>(backward.dz);
    const Stores of_dx = stores(piece.block, dz, dx);
    // The steps of a sweep begin at boundaries of one tensor, and a streaming store off a boundary faults.
    const bool streams_dresidual =
        dresidual && stores(piece.block, dz, dresidual) == Stores::kStreaming &&
        (of_dx == Stores::kCached || place_in_line(dx) == place_in_line(dresidual));
    sweeps_.backward(
        piece.block, activation(), backward_kind(problem_.saved), backward.frozen_statistics,
        backward_coefficients(piece), gradient_tensors(piece, backward),
        {dx + piece.offset, dresidual ? dresidual + piece.offset : nullptr, z ? z + piece.offset : nullptr,
         streams_dresidual ? Stores::kStreaming : Stores::kCached},
        of_dx);
  }

  // Bytes of a tensor that stay in the first or the second cache of a core beside those of one or two others.
  static constexpr int64_t kFirstLevel = 16384, kSecondLevel = 131072;

  /// Calls function(piece), or if channels are copied function(some) for parts of it of about so many bytes.
  template <class Function>
  void in_cache(const Piece& piece, const PartOfChannels& copied, int64_t bytes,
                const Function& function) const {
    if (!copied.part) return function(piece);
    constexpr int64_t kLeastRows = 8;  // a part costs as much as a row or two
    const int64_t row_bytes = piece.block.width * static_cast<int64_t>(sizeof(S));
    in_parts(piece, std::max(kLeastRows, bytes / row_bytes), function);
  }

  /// Calls function(some) for parts of the piece of so many rows.
  template <class Function>
  static void in_parts(const Piece& piece, int64_t rows, const Function& function) {
    for (int64_t row = 0; row < piece.block.rows; row += rows) {
      Piece some = piece;
      some.block.rows = std::min(rows, piece.block.rows - row);
      some.offset += row * piece.block.stride;
      function(some);
    }
  }

  /// The pixels of a piece of channels-last, and the channels of its columns.
  Pixels pixels(const Piece& piece) const {
    const int64_t channels = problem_.shape.c, per_row = partition_.pixels_per_row();
    const int64_t of_columns = per_row > 1 ? channels : piece.channels;
    return {piece.offset / channels, piece.block.rows * per_row, piece.first_channel, of_columns};
  }

  /// Calls part(segment, first, second) for every part of the channels' sums: first[c] and second[c] are those of
  /// channel c.
  template <class Part>
  void for_parts(const Part& part) const {
    for (int64_t segment = 0; segment < partition_.segments(); ++segment)
      for (int64_t column = 0; column < columns_; column += problem_.shape.c)
        part(segment, first_ + segment * columns_ + column, second_ + segment * columns_ + column);
  }

  ActivationChoice activation() const { return {problem_.activation, problem_.activation_param}; }

  /// Returns channel c of an AbnForward or an AbnBackward.
  template <class Tensors>
  static AbnChannel<T> channel(int64_t c, const Tensors& tensors) {
    return {static_cast<const T*>(tensors.weight), static_cast<const T*>(tensors.bias), tensors.mean,
            tensors.inv_std, c};
  }

  /// The coefficients of one channel, for coefficients_[kFirst] and those after it.
  template <int kFirst, int kCount>
  struct OfChannel {
    T values[kCount];
  };
  static OfChannel<0, 5> of_channel(const ForwardCoefficients<T>& k) {
    return {k.mean, k.scale, shift_of(k.mean, k), k.weight, k.bias};
  }
  static OfChannel<0, 3> of_channel(const CenterCoefficients<T>& k) {
    return {k.center, k.scale, shift_of(k.center, k)};
  }
  static OfChannel<3, 3> of_channel(const InputGradientCoefficients<T>& k) {
    return {k.per_dy, k.per_t, k.constant};
  }
  template <class Coefficients>
  static T shift_of(T center, const Coefficients& k) {
    return kUncentered ? uncentered_shift(center, k.scale, k.shift) : k.shift;
  }

  /// The lower half of this NaN is 0, as the sweeps over bf16 require (table.h).
  static T with_plain_nan(T value) { return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value; }

  template <int kFirst, int kCount>
  void store(int64_t c, const OfChannel<kFirst, kCount>& k) {
    for (int i = 0; i < kCount; ++i) {
      const T value = with_plain_nan(k.values[i]);
      T* const to = coefficients_[kFirst + i];
      to[c] = value;
      for (int64_t column = c + problem_.shape.c; column < columns_; column += problem_.shape.c)
        to[column] = value;
    }
  }

  /// Stores the coefficients that of(c) returns.
  template <class Of>
  void set(Channels channels, const Of& of) {
    for (int64_t c = channels.begin; c < channels.end; ++c) store(c, of_channel(of(c)));
  }

  Residual<S> residual(int64_t offset, const void* values) const {
    return {values ? static_cast<const S*>(values) + offset : nullptr, problem_.relu_residual};
  }

  void apply(const Piece& piece, const AbnForward& forward, const S* from, Saved saved) const {
    const auto at = [&](int k) { return coefficients_[k] + piece.first_channel; };
    S* const z = static_cast<S*>(forward.z);
    S* const saved_values = saves_aside(saved) ? static_cast<S*>(forward.saved_values) : nullptr;
    sweeps_.apply(piece.block, activation(), saved, {at(0), at(1), at(2), at(3), at(4)},
                  {from + piece.offset,
                   residual(piece.offset, forward.residual),
                   z + piece.offset,
                   saved_values ? saved_values + piece.offset : nullptr,
                   {forward.branch, piece.offset}},
                  stores(piece.block, from, z));
  }

  GradientTensors<S> gradient_tensors(const Piece& piece, const AbnBackward& backward) const {
    return {static_cast<const S*>(backward.saved_values) + piece.offset,
            residual(piece.offset, backward.residual),
            static_cast<const S*>(backward.dz) + piece.offset,
            {backward.branch, piece.offset}};
  }

  BackwardCoefficients<T> backward_coefficients(const Piece& piece) const {
    const auto at = [&](int k) { return coefficients_[k] + piece.first_channel; };
    return {at(0), at(1), at(2), at(3), at(4), at(5)};
  }

  // ---- Channels of NormalizedChannels

  /// What backward of channel c starts from.
  Saved saved_of(int64_t c) const { return slotted_.contains(c) ? Saved::kNormalized : problem_.saved; }

  /// The layer of one channel with neither weight nor activation.
  void normalize(const Piece& piece, const AbnForward& forward) const {
    const AbnChannel<T> channel{nullptr, nullptr, forward.mean, forward.inv_std, piece.first_channel};
    const auto k = of_channel(forward_coefficients(Saved::kOutput, channel));
    T values[5];
    for (int part = 0; part < 5; ++part) values[part] = with_plain_nan(k.values[part]);
    slotted_.each_row(piece, [&](const Block& row, int64_t offset, int64_t in_slots) {
      planes().apply(row, {Activation::kIdentity, 0}, Saved::kOutput,
                     {values, values + 1, values + 2, values + 3, values + 4},
                     {static_cast<const S*>(forward.x) + offset, {}, x_hat_ + in_slots, nullptr},
                     Stores::kCached);
    });
  }

  void reduce_slotted(const Piece& piece, const AbnBackward& backward, double* sum_dy,
                      double* sum_dy_t) const {
    *sum_dy = *sum_dy_t = 0;
    slotted_.each_row(piece, [&](const Block& row, int64_t offset, int64_t in_slots) {
      double dy = 0, dy_t = 0;
      planes().reduce(row, activation(), Saved::kInput, backward_coefficients(piece),
                      tensors_of_slotted(in_slots, offset, backward), &dy, &dy_t);
      *sum_dy += dy;
      *sum_dy_t += dy_t;
    });
  }

  void backward_of_slotted(const Piece& piece, const AbnBackward& backward) const {
    const auto at = [](void* values, int64_t offset) {
      return values ? static_cast<S*>(values) + offset : nullptr;
    };
    slotted_.each_row(piece, [&](const Block& row, int64_t offset, int64_t in_slots) {
      planes().backward(row, activation(), Saved::kInput, backward.frozen_statistics,
                        backward_coefficients(piece), tensors_of_slotted(in_slots, offset, backward),
                        {at(backward.dx, offset), at(backward.dresidual, offset), nullptr}, Stores::kCached);
    });
  }

  /// z of a piece whose backward was in parts: from the saved values, in the sweep that has the bytes of forward.
  void recompute_whole(const Piece& piece, const AbnBackward& backward) const {
    constexpr int64_t kMost = kMaxColumns / 2;  // channels of a strip: a plane has two pixels or more
    T values[5][kMost];
    for (int64_t i = 0; i < piece.channels; ++i) {
      const auto k =
          of_channel(recompute_coefficients(problem_.saved, channel(piece.first_channel + i, backward)));
      for (int part = 0; part < 5; ++part) values[part][i] = with_plain_nan(k.values[part]);
    }
    sweeps_.apply(
        piece.block, activation(), Saved::kOutput, {values[0], values[1], values[2], values[3], values[4]},
        {static_cast<const S*>(backward.saved_values) + piece.offset,
         residual(piece.offset, backward.residual), static_cast<S*>(backward.z) + piece.offset, nullptr},
        Stores::kCached);
  }

  GradientTensors<S> tensors_of_slotted(int64_t in_slots, int64_t offset, const AbnBackward& backward) const {
    return {x_hat_ + in_slots, residual(offset, backward.residual),
            static_cast<const S*>(backward.dz) + offset};
  }

  static const Sweeps<S>& planes() { return current_instruction_set().abn<S>().plane; }

  // ---- Memory and threads

  static uintptr_t place_in_line(const S* values) { return reinterpret_cast<uintptr_t>(values) % kLineBytes; }

  // Streaming stores pay for whole cache lines only, or for rows so long that their ends do not matter: for single
  // planes of 14 x 14 pixels, whose rows begin and end within a line, they cost half again as much as they save
  // elsewhere.
  Stores stores(const Block& block, const S* in, const S* out) const {
    constexpr int64_t kLongRow = 1024;
    const auto in_lines = [](int64_t values) {
      return values * static_cast<int64_t>(sizeof(S)) % kLineBytes == 0;
    };
    const bool whole_lines = in_lines(block.width) && in_lines(block.stride) && place_in_line(out) == 0;
    const bool long_rows = block.width * static_cast<int64_t>(sizeof(S)) >= kLongRow;
    const bool large = problem_.shape.elements() * static_cast<int64_t>(sizeof(S)) > kCachedBytes;
    return large && in != out && (whole_lines || long_rows) ? Stores::kStreaming : Stores::kCached;
  }

  template <class Body>
  void run_ranges(int64_t count, const Body& body) const {
    if (problem_.shape.elements() >= kSerialValues)
      parallel_ranges(count, body);
    else
      body(int64_t{0}, count);
  }

  /// Calls task(i, another_follows): whether the thread takes i + 1 next.
  template <class Task>
  void run(int64_t count, const Task& task) const {
    run_ranges(count, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) task(i, i + 1 < end);
    });
  }

  // Each thread takes its share from the end, where the caches still hold what it has just read.
  template <class Task>
  void run_backwards(int64_t count, const Task& task) const {
    run_ranges(count, [&](int64_t begin, int64_t end) {
      for (int64_t i = end - 1; i >= begin; --i) task(i);
    });
  }

  static const Sweeps<S>& sweeps(Geometry geometry) {
    const Kernels<S>& kernels = current_instruction_set().abn<S>();
    return geometry == Geometry::kPlane   ? kernels.plane
           : geometry == Geometry::kStrip ? kernels.strip
                                          : kernels.columns;
  }

  // The thread keeps this memory for its next call: fresh memory of this size would cost more page faults
  // than a small layer's arithmetic.
  static double* scratch(int which, int64_t size) {
    thread_local std::vector<double> memory[2 + kCoefficients];
    auto& values = memory[which];
    if (static_cast<int64_t>(values.size()) < size) values.resize(static_cast<std::size_t>(size));
    return values.data();
  }

  const AbnProblem& problem_;
  S* const x_hat_;  // of the slotted channels
  const SlottedChannels slotted_;
  Partition partition_;
  const Sweeps<S>& sweeps_;
  const int64_t columns_;           // C, or C times the pixels of a row
  double* first_;                   // (segments, columns): means, or sums of dy
  double* second_;                  // (segments, columns): squared deviations, or sums of dy * t
  T* coefficients_[kCoefficients];  // (columns) each
};

}  // namespace palimpsest::kernels::cpu::abn
