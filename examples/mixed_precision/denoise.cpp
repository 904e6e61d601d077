// A denoising network (DnCNN: Zhang et al., "Beyond a Gaussian Denoiser", 2017), which is not of the paper:
// convolutions with batch normalization and ReLU predict the noise of an image, Adam minimizes the squared error. The
// loss is the mean over all values of the images, as in restoration of images everywhere, so that the gradients are
// small by themselves: of 8 images of 128 x 128 an error of 0.03 has a gradient of 1.5e-7. The images are drawn (faces.h)
// and enlarged, the noise has a standard deviation of 0.2. Figure: peak signal-to-noise ratio of held-out images.
#include "examples/mixed_precision/faces.h"
#include "examples/mixed_precision/support.h"

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace mixed_precision {
namespace {

using palimpsest::nn::Conv2d;

constexpr int64_t kBatch = 8, kSide = 128, kWidth = 16, kHidden = 4;
constexpr double kNoise = 0.2;

Conv2d convolution(int64_t inputs, int64_t outputs) {
  return Conv2d(torch::nn::Conv2dOptions(inputs, outputs, 3).padding(1));
}

struct DenoiserImpl : torch::nn::Module {
  DenoiserImpl()
      : first(register_module("first", convolution(3, kWidth))),
        last(register_module("last", convolution(kWidth, 3))) {
    for (int64_t i = 0; i < kHidden; ++i) {
      hidden.push_back(register_module("hidden" + std::to_string(i), convolution(kWidth, kWidth)));
      norms.push_back(register_module("norm" + std::to_string(i), torch::nn::BatchNorm2d(kWidth)));
    }
  }

  /// (n, 3, h, w) noisy -> the noise, of the same shape
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = first->forward(images).relu();
    for (std::size_t i = 0; i < hidden.size(); ++i) x = norms[i]->forward(hidden[i]->forward(x)).relu();
    return last->forward(x);
  }

  Conv2d first, last;
  std::vector<Conv2d> hidden;
  std::vector<torch::nn::BatchNorm2d> norms;
};
TORCH_MODULE(Denoiser);

/// Returns n images, (n, 3, kSide, kSide), f32 in [-1, 1].
at::Tensor images_of(const Training& training, uint64_t part, int64_t index, int64_t n) {
  return training.moved(torch::upsample_bilinear2d(faces(training.seed(), part, index, n), {kSide, kSide},
                                                   /*align_corners=*/false));
}

/// Returns what is added to the images, drawn on the CPU whatever the device.
at::Tensor noise_like(const Training& training, const at::Tensor& images) {
  return training.moved(kNoise * torch::randn(images.sizes()));
}

at::Tensor noise_of(Training& training, Denoiser& model, const at::Tensor& noisy) {
  const auto guard = training.guard();
  return model->forward(noisy).to(at::kFloat);
}

/// Returns the peak signal-to-noise ratio in dB. The images have a range of 2.
double ratio(const at::Tensor& error) {
  return 10 * std::log10(4 / error.square().mean().item<double>());
}

void train(Training& training) {
  Denoiser model;
  model->to(training.device());
  training.keep_statistics_of(*model);
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(1e-3));
  training.run(adam, /*clip=*/0, [&](int64_t step) {
    const at::Tensor clean = images_of(training, 1, step, kBatch), noise = noise_like(training, clean);
    return torch::mse_loss(noise_of(training, model, clean + noise), noise);
  });
  const torch::NoGradGuard no_grad;
  model->eval();
  const at::Tensor clean = images_of(training, 2, 0, 64), noise = noise_like(training, clean);
  training.finish({{"signal_to_noise", ratio(noise_of(training, model, clean + noise) - noise)},
                   {"signal_to_noise_before", ratio(noise)}});
}

}  // namespace
}  // namespace mixed_precision

int main(int argc, char** argv) {
  return mixed_precision::run(argc, argv, "denoise",
                              "DnCNN: convolutions, squared error, Adam; drawn faces with noise.", 600,
                              mixed_precision::train);
}
