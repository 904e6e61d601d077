#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <vector>

namespace palimpsest::memory {

/// The state outside a piece of code on which its results depend: autocast and random generators. Noted
/// before the first run, put in place around the second, on whatever thread that is.
class Surroundings {
 public:
  /// Notes this thread's autocast (on, dtype, cache; CPU and CUDA; whether its maths is wide) and, if
  /// `random`, the state of the default generators of the CPU and of every device that holds one of `inputs`.
  Surroundings(const std::vector<at::Tensor>& inputs, bool random);

  /// After the first run: drops the generators that it did not advance (a CPU generator's state has 5 kB).
  void drop_unused_generators();

 private:
  friend class SurroundingsGuard;

  struct Autocast {
    std::array<bool, 2> enabled;  // CPU, CUDA
    std::array<at::ScalarType, 2> dtype;
    bool cache;
    bool wide_maths;  // base/wide_maths.h

    static Autocast now();
    void apply() const;
  };
  struct Generator {
    at::Generator generator;
    at::Tensor state;

    static Generator now(at::Generator generator);
    void apply();
  };

  Autocast autocast_;
  std::vector<Generator> generators_;
};

/// Puts what was noted in place until the end of the scope, and then what was there before.
class SurroundingsGuard {
 public:
  explicit SurroundingsGuard(const Surroundings& noted);
  ~SurroundingsGuard();
  SurroundingsGuard(const SurroundingsGuard&) = delete;
  SurroundingsGuard& operator=(const SurroundingsGuard&) = delete;

 private:
  Surroundings::Autocast autocast_before_;
  std::vector<Surroundings::Generator> generators_before_;
};

/// Gives `buffers` their present values back at the end of the scope (undefined ones are passed over). For
/// autograd that is no in-place operation: a graph that saved a buffer does not notice.
class BuffersGuard {
 public:
  explicit BuffersGuard(const std::vector<at::Tensor>& buffers);
  ~BuffersGuard();
  BuffersGuard(const BuffersGuard&) = delete;
  BuffersGuard& operator=(const BuffersGuard&) = delete;

 private:
  struct Buffer {
    at::Tensor buffer, values;
  };
  std::vector<Buffer> buffers_;
};

}  // namespace palimpsest::memory
