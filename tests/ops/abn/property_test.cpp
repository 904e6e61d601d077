// Ten thousand layers drawn at random: shape, rank, strides, dtype, weights down to zero, biases up to a
// hundred times the weights, activation, saved tensor, residual, statistics. Each against libtorch's own
// layers in f64.
#include "palimpsest/base/random.h"
#include "palimpsest/kernels/activation.h"
#include "tests/ops/abn_case.h"

#include <gtest/gtest.h>

namespace palimpsest::ops::tests {
namespace {

constexpr int kCases = 10000;
constexpr uint64_t kSeed = 20240229;

int64_t draw(Random& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random.uniform() * static_cast<double>(most - least + 1));
}

template <class T, std::size_t kSize>
T pick(Random& random, const T (&from)[kSize]) {
  return from[draw(random, 0, kSize - 1)];
}

at::Tensor normal(Random& random, at::IntArrayRef sizes) {
  at::Tensor t = at::empty(sizes, at::kDouble);
  double* const values = t.mutable_data_ptr<double>();
  for (int64_t i = 0; i < t.numel(); ++i)
    values[i] = 1.7320508 * (random.uniform() + random.uniform() + random.uniform() + random.uniform() - 2);
  return t.to(at::kFloat);  // the same numbers in every dtype
}

struct Drawn {
  AbnCase layer;
  bool in_place = false;
};

Drawn draw_case(Random& random) {
  Drawn d;
  AbnCase& c = d.layer;
  const auto dtype = random.uniform() < 0.5 ? at::kFloat : at::kDouble;
  const int64_t rank = draw(random, 2, 5), channels = draw(random, 1, random.uniform() < 0.1 ? 70 : 20);
  std::vector<int64_t> shape{draw(random, 1, 6), channels};
  for (int64_t i = 2; i < rank; ++i) shape.push_back(draw(random, 1, rank == 5 ? 4 : 9));
  if (c10::multiply_integers(shape) == channels) shape[0] = 2;  // one value per channel has no variance

  const double mean = pick(random, {0.0, 0.7, -30.0});
  c.base = (normal(random, shape) * 1.3 + mean).to(dtype);
  const int64_t layout = draw(random, 0, 2);
  if (layout == 1 && rank == 4) c.base = c.base.contiguous(at::MemoryFormat::ChannelsLast);
  if (layout == 2 && rank > 2)
    c.view = [](const at::Tensor& t) { return t.transpose(0, -1).contiguous().transpose(0, -1); };

  const double weight_scale = pick(random, {1.0, 1.0, 0.1, 3.0, 1e-3, 0.0});
  const double bias_scale = pick(random, {0.0, 0.5, 5.0, 100.0}) * (weight_scale > 1 ? 0.1 : 1);
  at::Tensor weight = normal(random, {channels}) * weight_scale;
  if (random.uniform() < 0.2) weight[draw(random, 0, channels - 1)] = pick(random, {0.0, 1e-9, -1e-20});
  if (random.uniform() < 0.9) c.weight = weight.to(dtype).set_requires_grad(true);
  if (random.uniform() < 0.9)
    c.bias = (normal(random, {channels}) * bias_scale).to(dtype).set_requires_grad(true);
  c.options.training = random.uniform() < 0.85;
  if (!c.options.training || random.uniform() < 0.5) {
    c.running_mean = normal(random, {channels}).to(dtype);
    c.running_var = normal(random, {channels}).abs().add(0.3).to(dtype);
  }
  c.dz = normal(random, shape).to(dtype);
  const Activation activation =
      kernels::kActivations.begin()[draw(random, 0, kernels::kActivations.size() - 1)].value;
  c.options.activation = activation;
  c.options.activation_param =
      activation == Activation::kELU ? pick(random, {1.0, 0.3}) : pick(random, {0.01, 0.3, 1.0});
  const bool invertible = kernels::is_invertible(activation);
  // In the order of the enumeration: from z; y, x-hat, x; from z and a bit.
  c.options.saved =
      static_cast<Saved>(draw(random, invertible ? 0 : 2, kernels::has_branches(activation) ? 5 : 4));
  if (random.uniform() < 0.3) {
    c.residual = (normal(random, shape) * pick(random, {1.0, 30.0})).to(dtype).set_requires_grad(true);
    c.options.relu_residual = random.uniform() < 0.4;
  }
  d.in_place = c.options.saved != Saved::kInput && random.uniform() < 0.5;
  std::ostringstream text;
  text << kernels::kActivations.name(activation) << " " << c.base.sizes() << " " << c.base.scalar_type()
       << " layout " << layout << " saved " << static_cast<int>(c.options.saved)
       << (d.in_place ? " in place" : "") << (c.residual ? " residual" : "")
       << (c.options.training ? "" : " frozen") << " weight " << weight_scale << " bias " << bias_scale
       << " mean " << mean;
  c.name = text.str();
  return d;
}

// y of the plain layer in f64, and the scale of x-hat's part in dx.
struct Plain {
  at::Tensor y, per_dy;
};
Plain plain(const AbnCase& c) {
  const auto d = [](const OptionalTensor& t) {
    return t ? t->detach().to(at::kDouble).clone() : at::Tensor();
  };
  const at::Tensor x = c.base.to(at::kDouble), weight = d(c.weight), mean = d(c.running_mean),
                   var = d(c.running_var);
  at::Tensor y =
      at::batch_norm(x, weight, d(c.bias), mean, var, c.options.training, 0.1, c.options.eps, false);
  if (c.residual) y = y + (c.options.relu_residual ? at::relu(d(c.residual)) : d(c.residual));
  std::vector<int64_t> reduced{0};
  for (int64_t i = 2; i < x.dim(); ++i) reduced.push_back(i);
  at::Tensor r = c.options.training ? (x.var(reduced, /*unbiased=*/false) + c.options.eps).rsqrt()
                                    : (d(c.running_var) + c.options.eps).rsqrt();
  return {y, (weight.defined() ? weight * r : r).abs()};
}

// Returns whether rounding to f32 could move a value of y across a kink, where the gradient jumps.
bool near_a_kink(const AbnCase& c, const at::Tensor& y) {
  if (c.base.scalar_type() == at::kDouble) return false;
  const auto near = [&](double kink) {
    return ((y - kink).abs() < 2e-5 * (1 + y.abs().max())).any().item<bool>();
  };
  switch (c.options.activation) {
    case Activation::kLeakyReLU:
    case Activation::kReLU:
    case Activation::kELU:
      return near(0);
    case Activation::kReLU6:
      return near(0) || near(6);
    case Activation::kHardSwish:
      return near(-3) || near(3);
    default:
      return false;
  }
}

// The least error of storing z and a bit: y is known to eps |z| / act'(y), near the minimum to the root
// of 2 eps |z| / act''. It reaches dx and the gradients of weight and bias through dy = dz act'(y) and x-hat.
double branch_error(const AbnCase& c, const at::Tensor& y) {
  if (c.options.saved != Saved::kOutputBit) return 0;
  const double epsilon = c.base.scalar_type() == at::kDouble ? 0x1p-52 : 0x1p-23;
  const at::Tensor at = y.clone().set_requires_grad(true);
  const at::Tensor z = activate(at, c.options.activation, 0);
  const at::Tensor slope = torch::autograd::grad({z.sum()}, {at})[0];
  const at::Tensor ulp = z.detach().abs() * epsilon;
  const at::Tensor lost = ulp / (slope.abs() + ulp.sqrt() + 1e-300);
  const at::Tensor dz = c.dz.to(at::kDouble).abs();
  at::Tensor gain = torch::ones({y.size(1)}, at::kDouble);
  if (c.weight) gain = gain + c.weight->detach().to(at::kDouble).abs().reciprocal().clamp_max(100);
  std::vector<int64_t> per_channel(static_cast<std::size_t>(y.dim()), 1);
  per_channel[1] = y.size(1);
  return 4 * ((dz + dz.square().mean().sqrt()) * lost * gain.view(per_channel)).norm().item<double>();
}

// An error may be as large as the tolerance's share of the result, or of the terms that cancelled on the way.
void expect_near(const char* what, const at::Tensor& got, const at::Tensor& want, double terms, double limit,
                 double storage = 0) {
  ASSERT_EQ(got.defined(), want.defined()) << what;
  if (!got.defined()) return;
  const double error = (got.to(at::kDouble) - want).norm().item<double>();
  EXPECT_LE(error, limit * (want.norm().item<double>() + terms) + storage) << what;
}

TEST(AbnProperty, TenThousandLayersHaveTheGradientsOfThePlainOnes) {
  Random random(kSeed);
  int checked = 0, drawn = 0;
  while (checked < kCases && !::testing::Test::HasFailure()) {
    ++drawn;
    const Drawn d = draw_case(random);
    const AbnCase& c = d.layer;
    const Plain truth = plain(c);
    if (near_a_kink(c, truth.y)) continue;
    SCOPED_TRACE(c.name + ", case " + std::to_string(drawn));
    const Outcome got = run_layer(c, d.in_place), want = run_truth(c);
    const double limit = tolerance_across_kinks(c.base.scalar_type());
    const double dz = c.dz.to(at::kDouble).norm().item<double>();
    const double values = static_cast<double>(c.base.numel() / c.base.size(1));
    const double size = truth.y.norm().item<double>();
    expect_near("output", got.z, want.z, size, limit);
    const double scale = truth.per_dy.max().item<double>(), storage = branch_error(c, truth.y);
    expect_near("gradient of x", got.dx, want.dx, dz * scale, limit, storage * scale);
    expect_near("gradient of weight", got.dweight, want.dweight, dz * std::sqrt(values), limit, storage);
    expect_near("gradient of bias", got.dbias, want.dbias, dz * std::sqrt(values), limit, storage);
    expect_near("gradient of residual", got.dresidual, want.dresidual, dz, limit, storage);
    ++checked;
  }
  EXPECT_EQ(checked, kCases) << "of " << drawn << " drawn from seed " << kSeed;
}

}  // namespace
}  // namespace palimpsest::ops::tests
