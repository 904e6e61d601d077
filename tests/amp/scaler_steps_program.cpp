// scaler_steps_program < SCRIPT: takes the steps of scaler_test.py's script with our scaler and prints the
// state after them, floats as hexadecimal. One command per line; K is the number of an optimizer, 0 or 1:
//   options SCALE GROWTH BACKOFF INTERVAL     begins
//   backward K GRADIENT                       of four values each times the scale, added to what is there
//   unscale K | clip K LIMIT | step K | zero K | update | set SCALE
//   print                                     scale, growth tracker, parameters
#include "palimpsest/amp/grad_scaler.h"

#include <torch/torch.h>

#include <cstdio>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

int main() {
  std::vector<at::Tensor> parameters;
  std::vector<torch::optim::SGD> optimizers;
  for (int k = 0; k < 2; ++k) {
    parameters.push_back(torch::arange(1, 5, at::kFloat).set_requires_grad(true));
    optimizers.emplace_back(std::vector<at::Tensor>{parameters.back()},
                            torch::optim::SGDOptions(0.125).momentum(0.5));
  }
  std::optional<palimpsest::amp::GradScaler> scaler;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command, number;
    size_t k = 0;
    words >> command;
    if (command == "options") {
      palimpsest::amp::GradScalerOptions options;
      words >> options.init_scale >> options.growth_factor >> options.backoff_factor >>
          options.growth_interval;
      scaler.emplace(options);
    } else if (command == "backward") {
      words >> k >> number;
      const auto weights = torch::arange(1, 5, at::kFloat) * std::stof(number);
      scaler->scale((parameters[k] * weights).sum()).backward();
    } else if (command == "unscale") {
      words >> k;
      scaler->unscale_(optimizers[k]);
    } else if (command == "clip") {
      words >> k >> number;
      torch::nn::utils::clip_grad_value_(parameters[k], std::stod(number));
    } else if (command == "step") {
      words >> k;
      std::printf("%s\n", scaler->step(optimizers[k]) ? "stepped" : "skipped");
    } else if (command == "zero") {
      words >> k;
      optimizers[k].zero_grad();
    } else if (command == "update") {
      scaler->update();
    } else if (command == "set") {
      words >> number;
      scaler->update(std::stod(number));
    } else if (command == "print") {
      const auto state = scaler->state();
      std::printf("%a %lld", state.scale, static_cast<long long>(state.growth_tracker));
      for (const auto& parameter : parameters)
        for (int i = 0; i < 4; ++i) std::printf(" %a", parameter[i].item<float>());
      std::printf("\n");
    } else {
      std::fprintf(stderr, "unknown command: %s\n", line.c_str());
      return 2;
    }
  }
}
