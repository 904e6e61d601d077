#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/commands.h"
#include "palimpsest/cli/weights_file.h"
#include "palimpsest/models/fold.h"
#include "palimpsest/nn/state_dict.h"
#include "palimpsest/train/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

namespace palimpsest::cli {
namespace {

nn::StateDict values(const nn::Model& model) {
  nn::StateDict tensors;
  for (const auto& [key, tensor] : nn::state_dict(model)) tensors.emplace_back(key, tensor.detach());
  return tensors;
}

/// Returns the options that the file stores, without the paths of this machine's images and first weights.
Options stored_options(const Options& given) {
  Options options = given;
  // Stores every setting, so that eval of the export is eval of the checkpoint.
  options.run.command = Command::kTrain;
  options.model.weights.clear();
  options.data.root.clear();
  options.model.reset_classifier = false;
  return options;
}

}  // namespace

int run_export(const Options& given) {
  const Options options = stored_options(given);
  const std::string& checkpoint = options.run.checkpoint;
  check_weights_file(options);
  const auto metadata = train::read_checkpoint_metadata(checkpoint);
  if (metadata.contains("folded"))
    throw Error(ErrorKind::kCheckpoint,
                "'" + checkpoint + "' is folded already: export the checkpoint that it was made of");
  auto model = load_trained_model(options);
  models::FoldReport report;
  if (options.run.fold) model = models::fold(std::move(model), &report);
  write_weights(options, *model, values(*model), options.run.fold);

  fmt::print("{}: {}\n", printable(checkpoint), describe_network(options));
  if (options.run.fold) {
    fmt::print("folded     {} batch normalizations into the convolutions before them\n",
               report.folded.size());
    if (!report.kept.empty())
      fmt::print("kept       {} that no convolution feeds: {}\n", report.kept.size(),
                 fmt::join(report.kept, ", "));
  }
  std::error_code ignored;
  const auto bytes = std::filesystem::file_size(options.run.file, ignored);
  fmt::print("written    {} ({:.1f} MB)\n", printable(options.run.file), static_cast<double>(bytes) / 1e6);
  return 0;
}

}  // namespace palimpsest::cli
