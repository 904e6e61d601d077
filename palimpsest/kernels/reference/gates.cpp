#include "palimpsest/kernels/gates.h"

#include "palimpsest/kernels/formulas/activation.h"
#include "palimpsest/kernels/formulas/precision.h"

// The truth of the tests: plain loops in double.
namespace palimpsest::kernels::reference {
namespace {

struct Activated {
  double z, derivative;
};

Activated activate(const GatesProblem& problem, float y) {
  Activated result{};
  dispatch_activation<double>(
      problem.activation, {problem.activation_param, precision_of<float>()},
      [&](const auto& act) { result = {act.forward(double{y}), act.derivative_at(double{y})}; });
  return result;
}

/// Calls visit(index of the value, index of its image and channel) for every value; images and channels are outer.
template <class Begin, class Visit, class End>
void for_channels(const Shape3& shape, const Begin& begin, const Visit& visit, const End& end) {
  for (int64_t n = 0; n < shape.n; ++n)
    for (int64_t c = 0; c < shape.c; ++c) {
      const int64_t channel = n * shape.c + c;
      begin();
      for (int64_t s = 0; s < shape.s; ++s) visit((n * shape.s + s) * shape.c + c, channel);
      end(channel);
    }
}

}  // namespace

void activation_means(const GatesProblem& problem, const float* y, float* means) {
  double sum = 0;
  for_channels(
      problem.shape, [&] { sum = 0; }, [&](int64_t i, int64_t) { sum += activate(problem, y[i]).z; },
      [&](int64_t channel) {
        means[channel] = static_cast<float>(sum / static_cast<double>(problem.shape.s));
      });
}

void gated_forward(const GatesProblem& problem, const float* y, const float* gate, float* product) {
  for_channels(
      problem.shape, [] {},
      [&](int64_t i, int64_t channel) {
        product[i] = static_cast<float>(activate(problem, y[i]).z * double{gate[channel]});
      },
      [](int64_t) {});
}

void gated_backward_reduce(const GatesProblem& problem, const float* y, const float* gate,
                           const float* dproduct, float* dgate, float* product) {
  double sum = 0;
  for_channels(
      problem.shape, [&] { sum = 0; },
      [&](int64_t i, int64_t) { sum += double{dproduct[i]} * activate(problem, y[i]).z; },
      [&](int64_t channel) { dgate[channel] = static_cast<float>(sum); });
  if (product) gated_forward(problem, y, gate, product);
}

void gated_backward_apply(const GatesProblem& problem, const float* y, const float* gate, const float* dmean,
                          const float* dproduct, float* dy) {
  for_channels(
      problem.shape, [] {},
      [&](int64_t i, int64_t channel) {
        const double dz = double{dproduct[i]} * double{gate[channel]} + double{dmean[channel]};
        dy[i] = static_cast<float>(dz * activate(problem, y[i]).derivative);
      },
      [](int64_t) {});
}

}  // namespace palimpsest::kernels::reference
