#include "palimpsest/base/printable.h"
#include "palimpsest/cli/commands.h"
#include "palimpsest/cli/factories.h"
#include "palimpsest/cli/processes.h"
#include "palimpsest/cli/weights_file.h"
#include "palimpsest/train/evaluate.h"

#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

namespace palimpsest::cli {
namespace {

nlohmann::ordered_json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json to_json(const train::EvaluationRecord& record, const Options& options) {
  const train::Metrics& m = record.metrics;
  nlohmann::ordered_json json{{"images", record.images}, {"loss", number_or_null(record.loss)}};
  if (options.data.bad_images == "skip") json["bad_images"] = record.bad_images;
  if (!record.segmentation) {
    json["top1"] = m.top1;
    json["top5"] = m.top5;
    return json;
  }
  json["mean_iou"] = number_or_null(m.mean_iou);
  json["pixel_accuracy"] = number_or_null(m.pixel_accuracy);
  auto& classes = json["class_iou"] = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < m.class_iou.size(); ++i)
    classes[options.model.class_names[i]] = number_or_null(m.class_iou[i]);  // null: the class does not occur
  return json;
}

void print(const train::EvaluationRecord& record, const Options& options) {
  const train::Metrics& m = record.metrics;
  fmt::print("images          {}\n", record.images);
  if (record.bad_images > 0) fmt::print("bad images      {}, left out\n", record.bad_images);
  fmt::print("loss            {:.4f}\n", record.loss);
  if (!record.segmentation) {
    fmt::print("top-1           {:.2f} %\ntop-5           {:.2f} %\n", 100 * m.top1, 100 * m.top5);
    return;
  }
  fmt::print("mean IoU        {:.2f} %\npixel accuracy  {:.2f} %\n\n", 100 * m.mean_iou,
             100 * m.pixel_accuracy);
  for (std::size_t i = 0; i < m.class_iou.size(); ++i) {
    const std::string iou =
        std::isnan(m.class_iou[i]) ? "does not occur" : fmt::format("{:6.2f} %", 100 * m.class_iou[i]);
    fmt::print("{:<22} {}\n", printable(options.model.class_names[i]), iou);
  }
}

int evaluate(Options options, distributed::Group* group) {
  const Datasets sets = make_datasets(options, Need::kValidation);
  const auto model = load_trained_model(options);
  check_task(options, *model);
  const auto loader = make_validation_loader(options, sets.validation);
  if (group) {
    auto tensors = model->parameters();
    for (const at::Tensor& buffer : model->buffers()) tensors.push_back(buffer);
    group->broadcast(tensors, "the weights");
  }
  const auto record =
      train::evaluate(*model, *loader, make_loss_options(options), make_format(options), group);
  if (group && group->rank() > 0) return 0;
  for (const std::string& reason : record.bad)
    std::cerr << "palimpsest: left out: " << printable(reason) << std::endl;
  if (options.run.json) {
    std::cout << to_json(record, options).dump() << std::endl;
  } else {
    print(record, options);
  }
  return 0;
}

}  // namespace

int run_eval(const Options& options) {
  const auto group = connect(options);
  return run_together(group.get(), [&] { return evaluate(options, group.get()); });
}

}  // namespace palimpsest::cli
