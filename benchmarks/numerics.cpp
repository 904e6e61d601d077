// Claim:    on ordinary data no strategy is further from f64 than limit_of.
// Opponent: the same layer in f64; the rows of `standard`, libtorch's own layers on the same data, claim
//           nothing.
// Limit:    ||got - want||_2 / ||want||_2 of the output z and of the gradients dx and dweight: 1e-5 in f32,
//           3e-2 in f16, 6e-2 in bf16.
//
// Every dtype x activation x strategy is measured on ordinary data and on three hard kinds; docs/numerics.md
// has the tables. Exit status: 0 done; 1 with --check if a claim fails, or the JSON file cannot be written; 2
// a wrong option.
#include "benchmarks/support.h"

#include "palimpsest/base/error.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/kernels/activation.h"
#include "palimpsest/nn/batch_norm_act.h"

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace palimpsest::benchmarks::numerics {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<const char*, at::ScalarType> kTypes[] = {
    {"f32", at::kFloat}, {"f16", at::kHalf}, {"bf16", at::kBFloat16}};

/// A kind of data. x has deviation 1 around `mean`; in 16 bits around `mean16`, because 16 bits have no
/// digits left around 1e4. |weight| is `weight` times 0.5 to 1.5, with alternating signs. bias is normal with
/// deviation `bias`.
struct Data {
  const char* name;
  double mean, mean16, weight, bias;
};
constexpr Data kData[] = {{"ordinary", 0.5, 0.5, 1, 0.5},
                          {"small weight", 0.5, 0.5, 0.01, 0},
                          {"large mean", 1e4, 30, 1, 0.5},
                          {"large bias", 0.5, 0.5, 0.1, 5}};

constexpr int64_t kImages = 8, kChannels = 32, kPixels = 14;

/// The tensors of one layer, rounded to storage in `type`.
struct Case {
  at::Tensor x, weight, bias, dz;

  Case(const Data& data, at::ScalarType type) {
    torch::manual_seed(20);
    const auto normal = [] { return torch::randn({kImages, kChannels, kPixels, kPixels}, at::kDouble); };
    x = normal().add(type == at::kFloat ? data.mean : data.mean16).to(type);
    dz = normal().to(type);
    const at::Tensor sign = torch::arange(kChannels).remainder(2).mul(2).sub(1);
    weight = torch::rand(kChannels, at::kDouble).add(0.5).mul(sign).mul(data.weight).to(at::kFloat);
    bias = torch::randn(kChannels, at::kDouble).mul(data.bias).to(at::kFloat);
  }
};

struct Result {
  at::Tensor z, dx, dweight;
};

/// Computes the layer by its definition, in f64.
Result truth(const Case& c, nn::Activation activation, double param) {
  const at::Tensor x = c.x.to(at::kDouble).set_requires_grad(true);
  const at::Tensor weight = c.weight.to(at::kDouble).set_requires_grad(true);
  const at::Tensor y = at::batch_norm(x, weight, c.bias.to(at::kDouble), {}, {}, true, 0.1, 1e-5, false);
  // libtorch's softplus is y above 20.
  const at::Tensor z = activation == nn::Activation::kSoftplus ? at::logaddexp(y, at::zeros_like(y))
                                                               : nn::activate(y, activation, param);
  const auto gradients = torch::autograd::grad({z}, {x, weight}, {c.dz.to(at::kDouble)});
  return {z.detach(), gradients[0], gradients[1]};
}

Result run(const Case& c, nn::Strategy strategy, nn::Activation activation, double param) {
  nn::NormOptions options;
  options.strategy = strategy;
  options.activation = activation;
  options.activation_param = param;
  nn::Norm norm(kChannels, options);
  {
    const torch::NoGradGuard no_grad;
    norm->weight.copy_(c.weight);
    norm->bias.copy_(c.bias);
  }
  const at::Tensor leaf = c.x.clone().set_requires_grad(true);
  at::Tensor z = norm->forward(leaf * 1);  // not a leaf: the layer may overwrite it
  const at::Tensor value = z.detach().clone();
  const auto gradients = torch::autograd::grad({z}, {leaf, norm->weight}, {c.dz});
  return {value, gradients[0], gradients[1]};
}

/// Rounded to three digits: the other digits depend on the machine.
double relative_error(const at::Tensor& got, const at::Tensor& want) {
  char text[32];
  const auto error = ((got.to(at::kDouble) - want).norm() / want.norm()).item<double>();
  std::snprintf(text, sizeof text, "%.2e", error);
  return std::strtod(text, nullptr);
}

/// The largest error of z or of a gradient on ordinary data. In f32 the layer promises this error. In 16 bits
/// a single value of 50,000 that storage rounds across a kink contributes 5e-3.
double limit_of(at::ScalarType type) {
  return type == at::kFloat ? 1e-5 : type == at::kHalf ? 3e-2 : 6e-2;
}

int run_program(int argc, char** argv) {
  const auto options = parse_options(
      argc, argv, "Measures the relative error of the layer's output and gradients against f64.");
  Json rows = Json::array();
  bool pass = true;
  std::printf("%-10s %-22s %-16s %-5s %10s %10s %10s\n", "activation", "strategy", "data", "dtype", "z", "dx",
              "dweight");
  for (const auto& [type_name, type] : kTypes) {
    for (const Data& data : kData) {
      const Case c(data, type);
      for (const auto& [activation, name, is_listed] : kernels::kActivations) {
        const double param = activation == nn::Activation::kELU ? 1 : 0.01;
        const Result want = truth(c, activation, param);
        for (const std::string& strategy_name : nn::strategy_names()) {
          const auto strategy = nn::parse_strategy(strategy_name);
          const bool alias = nn::to_string(strategy) != strategy_name ||
                             (strategy == nn::Strategy::kInplaceBit && !kernels::has_branches(activation));
          if (alias || !nn::fits(strategy, activation)) continue;
          const Result got = run(c, strategy, activation, param);
          const double z = relative_error(got.z, want.z), dx = relative_error(got.dx, want.dx),
                       dweight = relative_error(got.dweight, want.dweight);
          rows.push_back({{"dtype", type_name},
                          {"data", data.name},
                          {"activation", name},
                          {"strategy", strategy_name},
                          {"z", z},
                          {"dx", dx},
                          {"dweight", dweight}});
          const bool ordinary = &data == kData;
          const bool right = !ordinary || strategy == nn::Strategy::kStandard ||
                             std::max({z, dx, dweight}) <= limit_of(type);
          pass = pass && right;
          std::printf("%-10s %-22s %-16s %-5s %10.1e %10.1e %10.1e%s\n", name.data(), strategy_name.c_str(),
                      data.name, type_name, z, dx, dweight, right ? "" : "  FAIL");
        }
      }
    }
  }
  std::printf("numerics: %s\n", pass ? "every claim holds" : "a claim FAILED");
  if (!options.json.empty()) {
    std::string text = "{\"benchmark\": \"numerics\", \"processor\": " + Json(processor_name()).dump() +
                       ", \"commit\": " + Json(commit()).dump() + ", \"pass\": " + Json(pass).dump() +
                       ", \"rows\": [";
    for (std::size_t i = 0; i < rows.size(); ++i) text += (i ? ",\n" : "\n") + rows[i].dump();
    try {
      io::write_file_atomically(options.json, text + "\n]}\n");
    } catch (const Error& error) {
      std::fprintf(stderr, "numerics: %s\n", error.what());
      return 1;
    }
  }
  return pass || !options.check ? 0 : 1;
}

const Benchmark kBenchmark("bench_numerics", run_program);

}  // namespace
}  // namespace palimpsest::benchmarks::numerics
