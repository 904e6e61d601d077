#include "palimpsest/kernels/upsampled_loss.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "palimpsest/kernels/cpu/simd/scratch.h"
#include "palimpsest/kernels/cpu/upsampled_loss/kernels.h"
#include "palimpsest/kernels/cpu/upsampled_loss/selection.h"
#include "palimpsest/kernels/formulas/upsampling.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

namespace palimpsest::kernels::cpu {
namespace upsampled_loss {
namespace {

/// Pixels of the image per task: for fewer, waking a thread costs more than the work.
constexpr int64_t kTaskPixels = 4096;
/// Tasks of a call: each keeps a row of the small map.
constexpr int64_t kMostTasks = 128;

template <class T>
const Sweeps<T>& sweeps() {
  const Kernels& kernels = current_instruction_set().upsampled_loss;
  if constexpr (std::is_same_v<T, float>)
    return kernels.f32;
  else
    return kernels.f64;
}

/// The part of a problem that is the same for all rows.
template <class T>
class Plan {
 public:
  /// Cuts bands as for a sweep over `images`.
  Plan(const UpsampledProblem& problem, int64_t images)
      : problem(problem),
        stride(round_up(problem.c, sweeps<T>().lanes)),
        row_values((problem.in.w + 1) * stride),
        pixels(round_up(problem.out.w, sweeps<T>().lanes)),
        left_(static_cast<std::size_t>(pixels)),
        right_weight_(static_cast<std::size_t>(pixels)),
        first_row_(static_cast<std::size_t>(problem.in.h) + 1, problem.out.h) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(problem.out.w); ++i) {
      const Source source =
          source_of(static_cast<int64_t>(i), problem.in.w, problem.out.w, problem.align_corners);
      left_[i] = static_cast<int32_t>(source.first);
      right_weight_[i] = static_cast<T>(source.weight);
    }
    for (int64_t y = problem.out.h; y-- > 0;) {
      const int64_t top = source_of(y, problem.in.h, problem.out.h, problem.align_corners).first;
      first_row_[static_cast<std::size_t>(top)] = y;
    }
    for (std::size_t j = first_row_.size() - 1; j-- > 0;)
      first_row_[j] = std::min(first_row_[j], first_row_[j + 1]);
    // Bands of whole map rows, cut by the shape only.
    const int64_t pixels_per_map_row = std::max<int64_t>(1, problem.out.h * problem.out.w / problem.in.h);
    const int64_t rows = std::max<int64_t>(1, kTaskPixels / pixels_per_map_row);
    const int64_t most = ceil_divide(kMostTasks, std::max<int64_t>(1, images));
    bands = std::min(ceil_divide(problem.in.h, rows), most);
  }

  int64_t band_begin(int64_t band) const { return problem.in.h * band / bands; }
  /// The image's rows whose top row is map row j.
  int64_t first_row(int64_t j) const { return first_row_[static_cast<std::size_t>(j)]; }

  Row<T> row() const {
    Row<T> row;
    row.left = left_.data();
    row.right_weight = right_weight_.data();
    row.pixels = problem.out.w;
    row.width = problem.in.w;
    row.stride = stride;
    row.channels = problem.c;
    return row;
  }

  /// Reads a row of the small map.
  void load(const T* x, int64_t n, int64_t j, T* to) const {
    const UpsampledProblem& p = problem;
    std::fill(to, to + row_values, kLowest<T>);
    if (p.layout == Layout::kChannelsLast) {
      const T* from = x + map_index(p, n, 0, j, 0);
      for (int64_t w = 0; w < p.in.w; ++w, from += p.c) std::copy(from, from + p.c, to + w * stride);
    } else {
      for (int64_t c = 0; c < p.c; ++c) {
        const T* const from = x + map_index(p, n, c, j, 0);
        for (int64_t w = 0; w < p.in.w; ++w) to[w * stride + c] = from[w];
      }
    }
  }

  /// Writes (or adds) a row of the small map.
  template <bool kAdd>
  void save(const T* from, int64_t n, int64_t j, T* gradient) const {
    const UpsampledProblem& p = problem;
    for (int64_t w = 0; w < p.in.w; ++w)
      for (int64_t c = 0; c < p.c; ++c) {
        T& to = gradient[map_index(p, n, c, j, w)];
        to = kAdd ? to + from[w * stride + c] : from[w * stride + c];
      }
  }

  const UpsampledProblem problem;
  const int64_t stride, row_values;
  const int64_t pixels;  ///< per row of the image, in whole vectors
  int64_t bands = 1;

 private:
  std::vector<int32_t> left_;
  std::vector<T> right_weight_;
  std::vector<int64_t> first_row_;
};

/// Memory of a task, which the thread keeps.
template <class T>
T* task_memory(int64_t values) {
  struct Purpose {};
  return reinterpret_cast<T*>(scratch<Purpose>(values * static_cast<int64_t>(sizeof(T) / sizeof(float))));
}

/// Calls visit(row, y) for the rows y of image n whose top row lies in the band; behind those of each map row j,
/// done(j). `memory`: 4 map rows.
template <class T, class Visit, class Done>
void sweep_band(const Plan<T>& plan, const T* x, int64_t n, int64_t band, T* memory, const Visit& visit,
                const Done& done) {
  const UpsampledProblem& p = plan.problem;
  T *top = memory, *bottom = memory + plan.row_values;
  Row<T> row = plan.row();
  row.blended = memory + 2 * plan.row_values;
  row.logits = memory + 3 * plan.row_values;
  std::fill(row.blended, row.blended + plan.row_values, kLowest<T>);
  const int64_t end = plan.band_begin(band + 1);
  plan.load(x, n, plan.band_begin(band), bottom);
  for (int64_t j = plan.band_begin(band); j < end; ++j) {
    std::swap(top, bottom);
    if (j + 1 < p.in.h) plan.load(x, n, j + 1, bottom);
    row.top = top;
    row.bottom = j + 1 < p.in.h ? bottom : top;
    for (int64_t y = plan.first_row(j); y < plan.first_row(j + 1); ++y) {
      row.bottom_weight = static_cast<T>(source_of(y, p.in.h, p.out.h, p.align_corners).weight);
      visit(row, y);
    }
    done(j);
  }
}

/// What a band of an image adds to the result.
struct BandSums {
  double loss = 0, weight = 0;
  int64_t count = 0, first_wrong = -1;
};

bool bootstraps(const CrossEntropyRules& rules) {
  return rules.share < 1 || rules.probability < 1;
}

/// Returns for how many images bands are cut: sums are added by band, so threads have no say in it.
int64_t images_of_bands(const UpsampledProblem& problem, const CrossEntropyRules& rules) {
  return bootstraps(rules) ? 1 : problem.n;
}

/// Returns how many images a sweep takes.
int64_t images_at_a_time(const UpsampledProblem& problem, const CrossEntropyRules& rules) {
  return bootstraps(rules) ? std::min(std::max<int64_t>(1, rules.ranked_images), problem.n) : problem.n;
}

/// The memory of a call that depends on the size of the image.
template <class T>
class Workspace {
 public:
  Workspace(const Plan<T>& plan, const CrossEntropyRules& rules, bool has_gradient) {
    const UpsampledProblem& p = plan.problem;
    const int64_t images = images_at_a_time(p, rules);
    sum_bytes_ = p.n * plan.bands * static_cast<int64_t>(sizeof(BandSums));
    if (has_gradient) spill_values_ = images * plan.bands * plan.row_values;
    if (bootstraps(rules)) pixels_ = images * p.out.h * p.out.w;
  }

  int64_t bytes() const {
    return sum_bytes_ + (spill_values_ + pixels_) * static_cast<int64_t>(sizeof(T)) + pixels_;
  }
  void use(std::byte* memory) {
    sums = reinterpret_cast<BandSums*>(memory);
    spills = reinterpret_cast<T*>(memory + sum_bytes_);
    losses = spills + spill_values_;
    selected = reinterpret_cast<uint8_t*>(losses + pixels_);
  }

  BandSums* sums = nullptr;  ///< of all images
  T* spills = nullptr;       ///< of the images of a sweep, a map row per band; with a gradient
  /// Of the pixels of the images of a sweep; with bootstrapping.
  T* losses = nullptr;
  uint8_t* selected = nullptr;

 private:
  int64_t sum_bytes_ = 0, spill_values_ = 0, pixels_ = 0;
};

template <class T>
class CrossEntropy {
 public:
  CrossEntropy(const UpsampledProblem& problem, const T* x, const CrossEntropyTargets& targets,
               const CrossEntropyRules& rules, T* gradient, void* workspace)
      : plan_(problem, images_of_bands(problem, rules)),
        x_(x),
        targets_(targets),
        rules_(rules),
        gradient_(gradient),
        memory_(plan_, rules, gradient != nullptr) {
    if (!workspace) own_memory_.resize(static_cast<std::size_t>(memory_.bytes()));
    memory_.use(workspace ? static_cast<std::byte*>(workspace) : own_memory_.data());
    const double e = rules.label_smoothing;
    const auto padded = static_cast<std::size_t>(plan_.stride);
    weight_.resize(padded);
    scale_.resize(padded);
    hit_.resize(padded);
    offset_.resize(padded);
    for (int64_t c = 0; c < problem.c; ++c) total_weight_ += weight_of(c);
    for (int64_t c = 0; c < problem.c; ++c) {
      const auto i = static_cast<std::size_t>(c);
      const double per_class = e / static_cast<double>(problem.c);
      weight_[i] = static_cast<T>(weight_of(c));
      scale_[i] = static_cast<T>((1 - e) * weight_of(c) + per_class * total_weight_);
      hit_[i] = static_cast<T>((1 - e) * weight_of(c));
      offset_[i] = static_cast<T>(per_class * weight_of(c));
    }
    std::fill_n(memory_.sums, problem.n * plan_.bands, BandSums());
  }

  CrossEntropySums run() {
    const UpsampledProblem& p = plan_.problem;
    if (!bootstraps(rules_)) {
      sweep(0, p.n, Pass::kAll, gradient_);
      return add_up(0, p.n);
    }
    const int64_t at_a_time = images_at_a_time(p, rules_), pixels = p.out.h * p.out.w;
    for (int64_t first = 0; first < p.n; first += at_a_time) {
      const int64_t images = std::min(at_a_time, p.n - first);
      sweep(first, images, Pass::kRank, nullptr);
      if (const CrossEntropySums sums = add_up(first, images); sums.first_wrong >= 0) return sums;
      parallel_tasks(images, [&](int64_t i) {
        select_hardest(p, x_, targets_, rules_, first + i, memory_.losses + i * pixels,
                       memory_.selected + i * pixels);
      });
      sweep(first, images, Pass::kSelected, gradient_);
    }
    return add_up(0, p.n);
  }

 private:
  /// kAll: adds the losses of all pixels; kRank: notes them, too, for select_hardest; kSelected: adds those of the
  /// pixels that it selected.
  enum class Pass { kAll, kRank, kSelected };

  double weight_of(int64_t c) const { return rules_.weight ? rules_.weight[c] : 1; }

  void sweep(int64_t first, int64_t images, Pass pass, T* gradient) {
    first_ = first;
    parallel_tasks(images * plan_.bands, [&](int64_t task) {
      T* const spill = gradient ? memory_.spills + task * plan_.row_values : nullptr;
      sweep_band_of(first + task / plan_.bands, task % plan_.bands, pass, gradient, spill);
    });
    if (!gradient) return;
    // What the last rows of each band give to the first map row of the next one.
    parallel_tasks(images, [&](int64_t i) {
      const T* spill = memory_.spills + i * plan_.bands * plan_.row_values;
      for (int64_t band = 1; band < plan_.bands; ++band, spill += plan_.row_values)
        plan_.template save<true>(spill, first + i, plan_.band_begin(band), gradient);
    });
  }

  void sweep_band_of(int64_t n, int64_t band, Pass pass, T* gradient, T* spill) {
    const int64_t values = plan_.row_values, pixels = plan_.pixels;
    T* const memory = task_memory<T>(8 * values + 4 * pixels);
    T *top = memory + 4 * values, *bottom = top + values, *above = bottom + values;
    PixelLosses<T> asked;
    asked.row_gradient = gradient ? above + values : nullptr;
    asked.top_gradient = top;
    asked.bottom_gradient = bottom;
    asked.gap = memory + 8 * values;
    asked.log_sum = asked.gap + pixels;
    auto* const target = reinterpret_cast<int32_t*>(asked.log_sum + pixels);
    asked.target = target;
    asked.scale = scale_.data();
    asked.hit = hit_.data();
    if (rules_.label_smoothing > 0) {
      asked.smooth = asked.log_sum + 2 * pixels;
      asked.class_weight = weight_.data();
      asked.offset = offset_.data();
    }
    std::fill(target, target + pixels, -1);
    if (gradient) std::fill(top, top + 3 * values, T(0));
    bool first = true;
    BandSums& sums = memory_.sums[n * plan_.bands + band] = {};
    sweep_band(
        plan_, x_, n, band, memory,
        [&](const Row<T>& row, int64_t y) {
          if (sums.first_wrong >= 0) return;
          read_targets(n, y, pass, target, sums);
          if (sums.first_wrong >= 0) return;
          sweeps<T>().losses(row, asked);
          add_row(n, y, pass, asked, sums);
        },
        [&](int64_t j) {
          if (!gradient) return;
          // In this order for any cut into bands: the sum of the rows below, then that of the rows above.
          plan_.template save<false>(top, n, j, gradient);
          if (!first) plan_.template save<true>(above, n, j, gradient);
          first = false;
          std::swap(above, bottom);
          asked.bottom_gradient = bottom;
          std::fill(bottom, bottom + values, T(0));
          std::fill(top, top + values, T(0));
        });
    if (gradient) std::copy(above, above + values, spill);
  }

  /// Returns the place of a row in the memory per pixel.
  int64_t ranked_row(int64_t n, int64_t y) const {
    return ((n - first_) * plan_.problem.out.h + y) * plan_.problem.out.w;
  }

  void read_targets(int64_t n, int64_t y, Pass pass, int32_t* target, BandSums& sums) {
    const UpsampledProblem& p = plan_.problem;
    const int64_t ranked = ranked_row(n, y);
    for (int64_t i = 0; i < p.out.w; ++i) {
      const int64_t at = (n * p.out.h + y) * p.out.w + i, id = target_at(targets_, at);
      target[i] = -1;
      if (id == targets_.ignored || (pass == Pass::kSelected && !memory_.selected[ranked + i])) continue;
      if (id >= 0 && id < p.c)
        target[i] = static_cast<int32_t>(id);
      else if (sums.first_wrong < 0)
        sums.first_wrong = at;
    }
  }

  void add_row(int64_t n, int64_t y, Pass pass, const PixelLosses<T>& asked, BandSums& sums) {
    const UpsampledProblem& p = plan_.problem;
    const int64_t ranked = ranked_row(n, y);
    const double e = rules_.label_smoothing, per_class = e / static_cast<double>(p.c);
    for (int64_t i = 0; i < p.out.w; ++i) {
      const int32_t t = asked.target[i];
      const auto log_sum = static_cast<double>(asked.log_sum[i]);
      const double loss = static_cast<double>(asked.gap[i]) + log_sum;
      if (pass == Pass::kRank) {
        memory_.losses[ranked + i] = static_cast<T>(loss);
        memory_.selected[ranked + i] = t >= 0;
      }
      if (t < 0) continue;
      const double w = weight_of(t);
      sums.loss += (1 - e) * w * loss;
      if (e > 0) sums.loss += per_class * (static_cast<double>(asked.smooth[i]) + total_weight_ * log_sum);
      sums.weight += w;
      ++sums.count;
    }
  }

  CrossEntropySums add_up(int64_t first, int64_t images) const {
    CrossEntropySums total;
    for (int64_t i = first * plan_.bands; i < (first + images) * plan_.bands; ++i) {
      const BandSums& band = memory_.sums[i];
      total.loss += band.loss;
      total.weight += band.weight;
      total.count += band.count;
      if (total.first_wrong < 0) total.first_wrong = band.first_wrong;
    }
    return total;
  }

  const Plan<T> plan_;
  const T* const x_;
  const CrossEntropyTargets targets_;
  const CrossEntropyRules rules_;
  T* gradient_;
  int64_t first_ = 0;  // image of the sweep
  double total_weight_ = 0;
  std::vector<T> weight_, scale_, hit_, offset_;
  Workspace<T> memory_;
  std::vector<std::byte> own_memory_;
};

template <class T>
void argmax(const UpsampledProblem& problem, const T* x, bool bytes, void* ids) {
  const Plan<T> plan(problem, problem.n);
  parallel_tasks(problem.n * plan.bands, [&](int64_t task) {
    const int64_t n = task / plan.bands;
    T* const memory = task_memory<T>(4 * plan.row_values + problem.out.w);
    auto* const row_ids = reinterpret_cast<int32_t*>(memory + 4 * plan.row_values);
    sweep_band(
        plan, x, n, task % plan.bands, memory,
        [&](const Row<T>& row, int64_t y) {
          sweeps<T>().argmax(row, row_ids);
          const int64_t at = (n * problem.out.h + y) * problem.out.w;
          if (bytes)
            std::copy(row_ids, row_ids + problem.out.w, static_cast<uint8_t*>(ids) + at);
          else
            std::copy(row_ids, row_ids + problem.out.w, static_cast<int64_t*>(ids) + at);
        },
        [](int64_t) {});
  });
}

}  // namespace
}  // namespace upsampled_loss

int64_t upsampled_cross_entropy_workspace_bytes(const UpsampledProblem& problem,
                                                const CrossEntropyRules& rules, bool has_gradient) {
  const auto bytes_in = [&]<class T>(T) {
    using namespace upsampled_loss;
    return Workspace<T>(Plan<T>(problem, images_of_bands(problem, rules)), rules, has_gradient).bytes();
  };
  return problem.dtype == DType::f64 ? bytes_in(0.0) : bytes_in(0.0F);
}

CrossEntropySums upsampled_cross_entropy(const UpsampledProblem& problem, const void* x,
                                         const CrossEntropyTargets& targets, const CrossEntropyRules& rules,
                                         void* gradient, void* workspace) {
  const auto run_in = [&]<class T>(T) {
    return upsampled_loss::CrossEntropy<T>(problem, static_cast<const T*>(x), targets, rules,
                                           static_cast<T*>(gradient), workspace)
        .run();
  };
  return problem.dtype == DType::f64 ? run_in(0.0) : run_in(0.0F);
}

void upsampled_argmax(const UpsampledProblem& problem, const void* x, bool bytes, void* ids) {
  if (problem.dtype == DType::f64)
    return upsampled_loss::argmax(problem, static_cast<const double*>(x), bytes, ids);
  upsampled_loss::argmax(problem, static_cast<const float*>(x), bytes, ids);
}

}  // namespace palimpsest::kernels::cpu
