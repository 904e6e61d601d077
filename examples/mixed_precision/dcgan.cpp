// DCGAN (section 4.6 of the paper): a generator of fractionally strided convolutions, a discriminator of
// strided ones, leaky ReLU in both, batch normalization, Adam. Two optimizers share one loss scale: both
// update, then the step ends. The images are drawn (faces.h). No figure is accepted for the quality; this
// program prints the sliced Wasserstein distance at 8 x 8 pixels between generated and held-out images, and
// between two sets of real ones.
#include "examples/mixed_precision/faces.h"
#include "examples/mixed_precision/support.h"

#include <torch/torch.h>

namespace mixed_precision {
namespace {

using palimpsest::nn::Conv2d;
using palimpsest::nn::InPlaceABN;
using palimpsest::nn::Linear;

constexpr int64_t kBatch = 32, kNoise = 32, kWidth = 32;

/// Batch normalization and leaky ReLU, in place.
InPlaceABN normalization(int64_t channels) {
  return InPlaceABN(palimpsest::nn::InPlaceABNOptions(channels).slope(0.2));
}

Conv2d convolution(int64_t inputs, int64_t outputs, int64_t kernel, int64_t stride) {
  return Conv2d(torch::nn::Conv2dOptions(inputs, outputs, kernel).stride(stride).padding(1));
}

struct GeneratorImpl : torch::nn::Module {
  GeneratorImpl()
      : first(register_module("first", Linear(kNoise, 4 * kWidth * 16))),
        norm0(register_module("norm0", normalization(4 * kWidth))),
        up1(register_module("up1", convolution(4 * kWidth, 4 * 2 * kWidth, 3, 1))),
        norm1(register_module("norm1", normalization(2 * kWidth))),
        up2(register_module("up2", convolution(2 * kWidth, 4 * kWidth, 3, 1))),
        norm2(register_module("norm2", normalization(kWidth))),
        up3(register_module("up3", convolution(kWidth, 4 * 3, 3, 1))) {}

  /// (n, kNoise) -> (n, 3, 32, 32) in [-1, 1]
  at::Tensor forward(const at::Tensor& noise) {
    at::Tensor x = norm0->forward(first->forward(noise).view({noise.size(0), 4 * kWidth, 4, 4}));
    // A convolution to four times the channels, shuffled to twice the side, equals a convolution of stride
    // 1/2 with a kernel of 6.
    x = norm1->forward(torch::pixel_shuffle(up1->forward(x), 2));
    x = norm2->forward(torch::pixel_shuffle(up2->forward(x), 2));
    return torch::pixel_shuffle(up3->forward(x), 2).tanh();
  }

  Linear first;
  InPlaceABN norm0;
  Conv2d up1;
  InPlaceABN norm1;
  Conv2d up2;
  InPlaceABN norm2;
  Conv2d up3;
};
TORCH_MODULE(Generator);

struct DiscriminatorImpl : torch::nn::Module {
  DiscriminatorImpl()
      : down1(register_module("down1", convolution(3, kWidth, 4, 2))),
        down2(register_module("down2", convolution(kWidth, 2 * kWidth, 4, 2))),
        norm2(register_module("norm2", normalization(2 * kWidth))),
        down3(register_module("down3", convolution(2 * kWidth, 4 * kWidth, 4, 2))),
        norm3(register_module("norm3", normalization(4 * kWidth))),
        last(register_module("last", Linear(4 * kWidth * 16, 1))) {}

  /// (n, 3, 32, 32) -> (n, 1) logits of being real
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = torch::leaky_relu(down1->forward(images), 0.2);
    x = norm2->forward(down2->forward(x));
    x = norm3->forward(down3->forward(x));
    return last->forward(x.flatten(1));
  }

  Conv2d down1, down2;
  InPlaceABN norm2;
  Conv2d down3;
  InPlaceABN norm3;
  Linear last;
};
TORCH_MODULE(Discriminator);

/// Returns the cross-entropy of the answer `real` to every image, in f32.
at::Tensor loss_of(const at::Tensor& logits, bool real) {
  const at::Tensor l = logits.to(at::kFloat);
  return torch::binary_cross_entropy_with_logits(l, torch::full_like(l, real ? 1 : 0));
}

/// Returns the mean distance between two sets of images in 64 random directions, at 8 x 8 pixels.
double sliced_distance(const at::Tensor& a, const at::Tensor& b) {
  torch::manual_seed(0);
  const at::Tensor directions = torch::nn::functional::normalize(
      torch::randn({3 * 64, 64}), torch::nn::functional::NormalizeFuncOptions().dim(0));
  const auto sorted = [&](const at::Tensor& images) {
    const at::Tensor rows = torch::adaptive_avg_pool2d(images.to(at::kCPU, at::kFloat), {8, 8}).flatten(1);
    return std::get<0>(rows.matmul(directions).sort(0));
  };
  return (sorted(a) - sorted(b)).abs().mean().item<double>();
}

void train(Training& training) {
  Generator generator;
  Discriminator discriminator;
  torch::nn::Sequential both;  // a skipped step restores the statistics of both
  both->push_back(generator);
  both->push_back(discriminator);
  both->to(training.device());
  training.keep_statistics_of(*both);
  const auto options = torch::optim::AdamOptions(2e-4).betas({0.5, 0.999});
  torch::optim::Adam adam_g(generator->parameters(), options), adam_d(discriminator->parameters(), options);
  for (int64_t step = 0; step < training.steps(); ++step) {
    training.begin_step();
    const at::Tensor real = training.moved(faces(training.seed(), 1, step, kBatch)),
                     noise = training.moved(torch::randn({kBatch, kNoise}));
    at::Tensor fake, of_real, of_fake;
    {
      const auto guard = training.guard();
      fake = generator->forward(noise);
      of_real = discriminator->forward(real);
      of_fake = discriminator->forward(fake.detach());
    }
    const at::Tensor loss_d = loss_of(of_real, true) + loss_of(of_fake, false);
    training.backward(loss_d);
    training.step(adam_d);
    {
      const auto guard = training.guard();
      of_fake = discriminator->forward(fake);
    }
    const at::Tensor loss_g = loss_of(of_fake, true);
    training.backward(loss_g);
    training.step(adam_g);
    adam_d.zero_grad();  // the generator's loss also gave the discriminator gradients
    training.end_step(
        {{"loss_discriminator", loss_d.item<double>()}, {"loss_generator", loss_g.item<double>()}});
  }
  const torch::NoGradGuard no_grad;
  constexpr int64_t kImages = 512;
  at::Tensor fake;
  {
    const auto guard = training.guard();
    fake = generator->forward(training.moved(torch::randn({kImages, kNoise})));
  }
  const at::Tensor held_out = faces(training.seed(), 2, 0, kImages);
  training.finish(
      {{"distance", sliced_distance(fake, held_out)},
       {"distance_of_real_images", sliced_distance(faces(training.seed(), 2, 1, kImages), held_out)}});
}

}  // namespace
}  // namespace mixed_precision

int main(int argc, char** argv) {
  return mixed_precision::run(argc, argv, "dcgan", "DCGAN: convolutions both ways, Adam; drawn faces.", 250,
                              mixed_precision::train);
}
