#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/commands.h"
#include "palimpsest/cli/confusion_file.h"
#include "palimpsest/cli/factories.h"
#include "palimpsest/cli/label_files.h"
#include "palimpsest/cli/output_file.h"
#include "palimpsest/cli/processes.h"
#include "palimpsest/cli/weights_file.h"
#include "palimpsest/train/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <unordered_map>

namespace palimpsest::cli {
namespace {

nlohmann::ordered_json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json to_json(const train::EvaluationRecord& record, const Options& options) {
  const train::Metrics& m = record.metrics;
  nlohmann::ordered_json json{{"images", record.images}, {"loss", number_or_null(record.loss)}};
  if (options.data.bad_images == "skip") json["bad_images"] = record.bad_images;
  if (!options.run.trained_activation.empty())
    json["activation"] = {{"trained", options.run.trained_activation},
                          {"evaluated", activation_text(options)}};
  if (!record.confusion.empty()) json["confusion"] = confusion_rows(record.confusion);
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
  if (!options.run.trained_activation.empty())
    fmt::print("activation      trained with {}, evaluated with {}\n",
               printable(options.run.trained_activation), activation_text(options));
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

/// Returns whether `folder` is `parent` or lies in it, through links.
bool lies_in(const std::filesystem::path& folder, const std::filesystem::path& parent) {
  std::error_code error;
  const auto resolved = [&](const std::filesystem::path& path) {
    const auto target = std::filesystem::weakly_canonical(std::filesystem::absolute(path), error);
    return target.has_filename() ? target
                                 : target.parent_path();  // a folder that does not exist keeps its slash
  };
  const auto inner = resolved(folder), outer = resolved(parent);
  return !error && std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

/// Refuses flags that have no effect, and files that cannot be written.
void check_files(const Options& options) {
  const auto output = options.given.find("output.folder");
  const bool labels = !options.run.labels.empty();
  if (labels && options.output.folder.empty())
    throw Error(ErrorKind::kUsage, "[output] folder (--output) is required: the label images go there");
  if (!labels && output != options.given.end() && output->second.starts_with("--"))
    throw Error(ErrorKind::kUsage, output->second + " has no effect without --labels");
  if (!labels && options.run.confusion.empty() && options.run.overwrite)
    throw Error(ErrorKind::kUsage, "--overwrite has no effect without --labels or --confusion");
  for (const auto& [key, flag, value] :
       {std::tuple{"eval_crop", "--eval-crop", options.data.eval_crop},
        {"eval_short_side", "--eval-short-side", options.data.eval_short_side}})
    if (labels && value > 0)
      throw Error(ErrorKind::kUsage,
                  fmt::format("--labels needs whole images at their own size: set [data] {} ({}) to 0, "
                              "which is {}",
                              key, flag, value));
  if (labels && !options.data.root.empty() && lies_in(options.output.folder, options.data.root))
    throw Error(ErrorKind::kUsage, "--output must be a folder outside of the data set " + options.data.root +
                                       ", whose labels are the truth; got " + options.output.folder);
  check_confusion_file(options);
}

std::filesystem::path label_path(const Options& options, const std::string& image) {
  return std::filesystem::path(options.output.folder) / data::label_file_name(image);
}

/// Throws if the labels of two images have one file. Each of several processes looks at all images, so all
/// end before one of them writes.
void check_label_files(const Options& options, const data::Dataset& dataset) {
  std::unordered_map<std::string, int64_t> first;  // by file
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const std::string name = dataset.name(i), path = label_path(options, name).string();
    const auto [other, fresh] = first.emplace(path, i);
    if (fresh) continue;
    throw Error(ErrorKind::kUsage,
                fmt::format("the labels of {} and {} would both be written to {}: rename one of them", name,
                            dataset.name(other->second), path));
  }
}

/// Returns a receiver that writes FOLDER/NAME.png per image.
auto label_writer(const Options& options) {
  return [&options, encoding = make_label_encoding(options)](const std::string& name,
                                                             const at::Tensor& classes) {
    const auto path = label_path(options, name);
    check_picture_file(path, options);
    data::write_labels(path, classes, encoding);
  };
}

void tell(const train::EvaluationRecord& record, const Options& options) {
  for (const std::string& reason : record.bad)
    std::cerr << "palimpsest: left out: " << printable(reason) << std::endl;
  if (const std::string doubt = train::doubt_of(record); !doubt.empty())
    std::cerr << "palimpsest: " << doubt << std::endl;
  if (!options.run.confusion.empty() && !record.confusion.empty()) write_confusion(options, record.confusion);
  if (options.run.json) {
    std::cout << to_json(record, options).dump() << std::endl;
  } else {
    print(record, options);
  }
}

int evaluate(Options options, distributed::Group* group) {
  check_files(options);
  const Datasets sets = make_datasets(options, Need::kValidation);
  const auto model = load_trained_model(options);
  const auto loader = make_validation_loader(options, sets.validation);
  if (group) {
    auto tensors = model->parameters();
    for (const at::Tensor& buffer : model->buffers()) tensors.push_back(buffer);
    group->broadcast(tensors, "the weights");
  }
  train::EvaluationOptions evaluation{
      .loss = make_loss_options(options),
      .format = make_format(options),
      .views = make_views(options),
      .confusion_classes = options.run.confusion.empty() ? 0 : std::numeric_limits<int64_t>::max()};
  if (options.eval.protocol == "ten_crop") evaluation.ten_crop = options.data.eval_crop;
  if (!options.run.labels.empty() && !model->is_segmentation())
    throw Error(ErrorKind::kUsage,
                "--labels has no effect: " + options.model.name + " labels images, not pixels");
  if (!options.run.labels.empty()) {
    check_label_files(options, *sets.validation);
    evaluation.labels = label_writer(options);
  }
  train::LoaderBatches batches(*loader);
  const auto record = train::evaluate(*model, batches, evaluation, group);
  if (!group || group->rank() == 0) tell(record, options);
  if (options.run.confusion.empty() || !record.confusion.empty()) return 0;
  const Error error(ErrorKind::kDiverged,
                    "--confusion: " + options.run.confusion +
                        " is not written: outputs of the network, or their loss, are NaN: no class is right");
  if (group) {
    group->barrier("the end");  // a launcher kills the first rank when another one ends with an error
    group->throw_on_all(error);
  }
  throw Error(error);
}

}  // namespace

int run_eval(const Options& options) {
  const auto group = connect(options);
  return run_together(group.get(), [&] { return evaluate(options, group.get()); });
}

}  // namespace palimpsest::cli
