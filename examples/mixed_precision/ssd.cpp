// A single shot detector (section 4.2 of the paper): a plain network of 3x3 convolutions in the manner of
// VGG, heads on two of its resolutions, smooth L1 loss of offsets and cross-entropy of kinds with the hardest
// negatives, SGD with momentum. As in the Caffe original, pixels run from -128 to 127 and no layer
// normalizes: activations are large, their gradients small. The pictures are generated (shapes.h). Figure:
// mean average precision of held-out ones.
#include "examples/mixed_precision/boxes.h"
#include "examples/mixed_precision/shapes.h"
#include "examples/mixed_precision/support.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <vector>

namespace mixed_precision {
namespace {

using palimpsest::nn::Conv2d;

constexpr double kLearningRate = 0.001;  // of SSD
constexpr int64_t kBatch = 16, kSides = 2, kOutputs = Shapes::kKinds + 1 + 4;

Conv2d convolution(int64_t inputs, int64_t outputs) {
  return Conv2d(torch::nn::Conv2dOptions(inputs, outputs, 3).padding(1));
}

struct DetectorImpl : torch::nn::Module {
  DetectorImpl() {
    int64_t inputs = 3;
    for (const int64_t outputs : {8, 8, 16, 16, 32, 32, 64, 64, 64, 64}) {
      layers.push_back(
          register_module("layer" + std::to_string(layers.size()), convolution(inputs, outputs)));
      inputs = outputs;
    }
    for (auto& layer : layers)
      torch::nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
    for (const int64_t channels : {32, 64, 64}) {
      heads.push_back(
          register_module("head" + std::to_string(heads.size()), convolution(channels, kSides * kOutputs)));
      torch::nn::init::normal_(heads.back()->weight, 0, 0.01);
    }
    for (auto& parameter : parameters())
      if (parameter.dim() == 1) torch::nn::init::zeros_(parameter);
  }

  /// (n, 3, 64, 64) -> (n, boxes, kinds + 1 + 4): logits of kinds, offsets
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = images;
    std::vector<at::Tensor> outputs;
    for (size_t i = 0; i < layers.size(); ++i) {
      x = layers[i]->forward(x).relu();
      if (i == 5 || i == 7 || i == 9)  // a head on each of the last three resolutions
        outputs.push_back(
            heads[outputs.size()]->forward(x).permute({0, 2, 3, 1}).reshape({x.size(0), -1, kOutputs}));
      if (i % 2 == 1 && i < 8) x = torch::max_pool2d(x, 2);
    }
    return torch::cat(outputs, 1);
  }

  std::vector<Conv2d> layers, heads;
};
TORCH_MODULE(Detector);

/// Default boxes at the resolutions 16 x 16, 8 x 8 and 4 x 4.
std::vector<Box> boxes_of_detector() {
  std::vector<Box> boxes;
  for (const auto& [stride, sides] :
       {std::pair<int64_t, std::vector<double>>{4, {12, 14}}, {8, {17, 20}}, {16, {23, 27}}}) {
    const auto more = default_boxes(Shapes::kSide, stride, sides);
    boxes.insert(boxes.end(), more.begin(), more.end());
  }
  return boxes;
}

at::Tensor outputs_of(Training& training, Detector& model, const Shapes& shapes) {
  at::Tensor outputs;
  {
    const auto guard = training.guard();
    outputs = model->forward(training.moved(shapes.images));
  }
  return outputs.to(at::kFloat);
}

/// Returns the sum over matched boxes and over three times as many of the hardest other boxes, divided by the number of
/// matched boxes (SSD, eq. 1).
at::Tensor loss_of(const at::Tensor& outputs, const Targets& of) {
  const Targets targets{of.kinds.to(outputs.device()), of.offsets.to(outputs.device())};
  const auto parts = outputs.split_with_sizes({Shapes::kKinds + 1, 4}, 2);
  const at::Tensor matched = targets.kinds > 0;
  const at::Tensor entropy =
      torch::cross_entropy_loss(parts[0].flatten(0, 1), targets.kinds.flatten(), {}, at::Reduction::None)
          .view_as(targets.kinds);
  const at::Tensor negative = entropy.detach().masked_fill(matched, -1);
  const at::Tensor rank = negative.argsort(/*stable=*/true, /*dim=*/1, /*descending=*/true)
                              .argsort(/*dim=*/1, /*descending=*/false);
  const at::Tensor counted = matched.logical_or(rank < 3 * matched.sum(1, /*keepdim=*/true));
  const at::Tensor mask = matched.unsqueeze(2).to(at::kFloat);
  const at::Tensor offsets =
      torch::smooth_l1_loss(parts[1] * mask, targets.offsets * mask, at::Reduction::Sum);
  return ((entropy * counted).sum() + offsets) / matched.sum().clamp_min(1);
}

double evaluate(Training& training, Detector& model, const std::vector<Box>& boxes) {
  const torch::NoGradGuard no_grad;
  const Shapes shapes(training.seed(), 2, 0, 200);
  const at::Tensor outputs = outputs_of(training, model, shapes).cpu();
  const at::Tensor kinds = outputs.narrow(2, 0, Shapes::kKinds + 1).softmax(2),
                   offsets = outputs.narrow(2, Shapes::kKinds + 1, 4);
  std::vector<std::vector<Object>> detections;
  for (int64_t i = 0; i < outputs.size(0); ++i) detections.push_back(detect(kinds[i], offsets[i], boxes));
  return mean_average_precision(detections, shapes.objects, Shapes::kKinds);
}

void train(Training& training) {
  Detector model;
  model->to(training.device());
  const std::vector<Box> boxes = boxes_of_detector();
  torch::optim::SGD sgd(model->parameters(),
                        torch::optim::SGDOptions(kLearningRate).momentum(0.9).weight_decay(5e-4));
  training.run(sgd, /*clip=*/0, [&](int64_t step) {
    // A warm-up, without which one of three seeds in bf16 lost all boxes; constant; linear to 0 from half of the steps on.
    const auto done = static_cast<double>(step), steps = static_cast<double>(training.steps());
    const double factor = std::min({1.0, 10 * (done + 1) / steps, 2 * (1 - done / steps)});
    for (auto& group : sgd.param_groups())
      static_cast<torch::optim::SGDOptions&>(group.options()).lr(kLearningRate * factor);
    const Shapes shapes(training.seed(), 1, step, kBatch);
    return loss_of(outputs_of(training, model, shapes), match(shapes.objects, boxes));
  });
  training.finish({{"mean_average_precision", evaluate(training, model, boxes)}});
}

}  // namespace
}  // namespace mixed_precision

int main(int argc, char** argv) {
  return mixed_precision::run(argc, argv, "ssd",
                              "A single shot detector: plain convolutions, SGD; generated shapes.", 1000,
                              mixed_precision::train);
}
