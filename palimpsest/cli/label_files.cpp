#include "palimpsest/cli/label_files.h"

#include "palimpsest/base/error.h"

#include <string>

namespace palimpsest::cli {

data::LabelEncoding make_label_encoding(const Options& options) {
  const std::string& name = options.run.labels;
  if (name == "train") {
    if (options.model.classes > 256)
      throw Error(ErrorKind::kUsage,
                  "--labels train writes 8-bit images of at most 256 classes, the network has " +
                      std::to_string(options.model.classes));
    return {};
  }
  try {
    return data::official_encoding(name == "official" ? options.data.kind : name, options.model.classes);
  } catch (const Error& error) {
    throw Error(ErrorKind::kUsage, "--labels " + name + ": " + error.what());
  }
}

}  // namespace palimpsest::cli
