#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <vector>

namespace palimpsest::memory {

/// The ambient state of a piece of code: autocast and random generators. Its results depend on them although
/// they are no arguments. It is taken before the first run and set around the second run, on whatever thread
/// the second run is.
class AmbientState {
 public:
  /// Takes this thread's autocast (enabled, dtype, cache; CPU and CUDA; compute_in_f32()) and, if `random`,
  /// the state of the default generators of the CPU and of every device that holds one of `inputs`.
  AmbientState(const std::vector<at::Tensor>& inputs, bool random);

  /// Drops the generators that the first run did not advance (the state of a CPU generator has 5 kB). Call it
  /// after that run.
  void drop_unused_generators();

 private:
  friend class AmbientStateGuard;

  struct Autocast {
    std::array<bool, 2> enabled;  // CPU, CUDA
    std::array<at::ScalarType, 2> dtype;
    bool cache;
    bool compute_in_f32;

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

/// Sets `state` until the end of the scope, then the state from before.
class AmbientStateGuard {
 public:
  explicit AmbientStateGuard(const AmbientState& state);
  ~AmbientStateGuard();
  AmbientStateGuard(const AmbientStateGuard&) = delete;
  AmbientStateGuard& operator=(const AmbientStateGuard&) = delete;

 private:
  AmbientState::Autocast autocast_before_;
  std::vector<AmbientState::Generator> generators_before_;
};

}  // namespace palimpsest::memory
