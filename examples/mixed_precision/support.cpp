#include "examples/mixed_precision/support.h"

#include <palimpsest/io/atomic_file.h>
#include <palimpsest/train/device.h>
#include <palimpsest/train/loss_scale.h>

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/utils.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>

namespace mixed_precision {
namespace {

using Json = nlohmann::ordered_json;
using palimpsest::Error;
using palimpsest::ErrorKind;

palimpsest::train::StepOptions step_options(const Options& options) {
  // An empty loss scale: the precision needs none.
  if (options.loss_scale.empty()) return {options.precision, {}};
  return {options.precision, palimpsest::train::parse_loss_scale(options.loss_scale)};
}

/// The shares of a histogram and its recommended scale.
Json to_json(const amp::ExponentHistogram& histogram) {
  const auto s = histogram.shares();
  return {{"values", histogram.values()},
          {"zero", s.zero},
          {"lost", s.lost},
          {"recoverable", s.recoverable},
          {"above", s.above},
          {"recommended_scale", histogram.recommended_scale()}};
}

Options parse(int argc, char** argv, const std::string& description, int64_t steps) {
  Options options;
  options.steps = steps;
  std::string precision = "f32", device = "cpu";
  CLI::App app(description);
  app.add_option("--precision", precision, "<f32, bf16, f16 or f16-pseudo> precision of the computation")
      ->capture_default_str();
  app.add_option("--loss-scale", options.loss_scale,
                 "<dynamic or factor> f16: multiplies the loss; 1: no scale [dynamic]");
  app.add_option("--steps", options.steps, "<steps> training steps")->capture_default_str();
  app.add_option("--seed", options.seed, "<number> seed of data and first weights")->capture_default_str();
  app.add_option("--device", device, "<cpu, cuda or cuda:N> device that computes")->capture_default_str();
  app.add_option("--json", options.json,
                 "<file> also write the record to this file, a line of JSON for each step");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success&) {
    std::fputs(app.help().c_str(), stdout);
    std::exit(0);
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorKind::kUsage, error.what());
  }
  options.precision = amp::parse_precision(precision);
  if (options.steps < 1)
    throw Error(ErrorKind::kUsage, "--steps must be at least 1, got " + std::to_string(options.steps));
  options.device = palimpsest::train::parse_device(device);
  if (!amp::needs_loss_scale(options.precision)) {
    if (!options.loss_scale.empty())
      throw Error(ErrorKind::kUsage,
                  "--loss-scale has no effect in " + precision + ": it needs --precision f16 or f16-pseudo");
    return options;
  }
  if (options.loss_scale.empty()) options.loss_scale = "dynamic";
  const auto scale = palimpsest::train::parse_loss_scale(options.loss_scale, "--loss-scale");
  if (scale.kind == palimpsest::train::LossScale::Kind::kAuto)
    throw Error(ErrorKind::kUsage,
                "--loss-scale must be 'dynamic' or a number above 0 that f32 holds, got 'auto'");
  return options;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

Training::Training(const std::string& name, const Options& options)
    : name_(name), options_(options), step_(step_options(options)) {}

void Training::keep_statistics_of(const torch::nn::Module& model) {
  step_.restore_buffers_of(model);
}

void Training::begin_step() {
  step_.begin(/*observe=*/step_.steps_done() % kObserveEvery == 0);
}

void Training::backward(const at::Tensor& loss) {
  step_.forward_done(loss);
  step_.backward(loss);
}

void Training::step(torch::optim::Optimizer& optimizer, double clip) {
  step_.update(optimizer, [&] {
    if (clip > 0)
      for (auto& group : optimizer.param_groups()) torch::nn::utils::clip_grad_norm_(group.params(), clip);
  });
  optimizer.zero_grad();
}

void Training::end_step(const std::vector<Metric>& losses) {
  if (const auto& seen = step_.observation()) {
    activations_.add(seen->activations);
    weights_.add(seen->weights);
  }
  const double scale = step_.loss_scale();
  const bool stepped = step_.end();
  const int64_t number = step_.steps_done();
  Json line;
  line["step"] = number;
  std::string text;
  bool finite = true;
  for (const auto& [name, value] : losses) {
    line[name] = value;
    text += " " + name + " " + std::to_string(value);
    finite &= std::isfinite(value);
  }
  line["scale"] = scale;
  line["skipped"] = step_.skipped_steps();
  record_ += line.dump() + "\n";
  if (number == steps() || number % std::max<int64_t>(1, steps() / 10) == 0) {
    std::printf("step %lld/%lld%s scale %g skipped %lld\n", static_cast<long long>(number),
                static_cast<long long>(steps()), text.c_str(), scale,
                static_cast<long long>(step_.skipped_steps()));
    std::fflush(stdout);
  }
  if ((!finite && stepped) || step_.is_hopeless()) {
    write();
    throw Error(ErrorKind::kDiverged, "step " + std::to_string(number) + ": no finite gradients" +
                                          (finite ? " in the last 50 steps" : ", the loss is not finite") +
                                          "; try --precision bf16 or f32");
  }
}

void Training::run(torch::optim::Optimizer& optimizer, double clip,
                   const std::function<at::Tensor(int64_t)>& loss) {
  for (int64_t i = 0; i < steps(); ++i) {
    begin_step();
    const at::Tensor value = loss(i);
    backward(value);
    step(optimizer, clip);
    end_step({{"loss", value.item<double>()}});
  }
}

void Training::finish(const std::vector<Metric>& metrics) {
  Json line{{"program", name_},
            {"precision", amp::to_string(options_.precision)},
            {"loss_scale", options_.loss_scale},
            {"steps", steps()},
            {"seed", seed()},
            {"device", device().str()},
            {"skipped", step_.skipped_steps()}};
  for (const auto& [name, value] : metrics) {
    line["metrics"][name] = value;
    std::printf("%s %.4f\n", name.c_str(), value);
  }
  line["activation_gradients"] = to_json(activations_);
  line["weight_gradients"] = to_json(weights_);
  if (activations_.values() > 0) std::printf("activations' gradients: %s", activations_.text().c_str());
  std::printf("weights' gradients: %s\n", first_line(weights_.text()).c_str());
  record_ += line.dump() + "\n";
  write();
}

void Training::write() const {
  if (!options_.json.empty()) palimpsest::io::write_file_atomically(options_.json, record_);
}

int run(int argc, char** argv, const std::string& name, const std::string& description, int64_t steps,
        const std::function<void(Training&)>& train) {
  int status = 1;
  std::string message;
  try {
    const Options options = parse(argc, argv, description, steps);
    torch::manual_seed(options.seed);
    // The products of f32 and f16-pseudo on a GPU: TF32 would give them the mantissa of f16.
    at::globalContext().setAllowTF32CuDNN(false);
    const auto start = std::chrono::steady_clock::now();
    Training training(name, options);
    train(training);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("%.1f s\n", seconds.count());
    return 0;
  } catch (const Error& error) {
    message = error.what();
    status = error.exit_code();
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    message = error.what();
  }
  std::fprintf(stderr, "%s: error: %s\n", name.c_str(), first_line(message).c_str());
  return status;
}

}  // namespace mixed_precision
