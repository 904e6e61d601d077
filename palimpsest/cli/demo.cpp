#include "palimpsest/cli/demo.h"

#include "palimpsest/cli/commands.h"
#include "palimpsest/cli/compare.h"

#include <iostream>

namespace palimpsest::cli {

const char* demo_config() {
  return R"(# The settings of `palimpsest demo`: a ResNet-18 DeepLabV3 on generated street scenes, trained once
# per strategy, in about a minute on two cores. The same by hand, to start from:
#   palimpsest compare --config examples/demo.toml --output demo
[model]
name = "deeplabv3_resnet18"
activation = "leaky_relu"
slope = 0.01
output_stride = 16

[data]
kind = "generated"
images = 80
val_images = 24
height = 112
width = 144
data_seed = 1
flip = 0.5
workers = 1

[train]
epochs = 5
batch = 8
seed = 1
channels_last = true

[optimizer]
lr = 0.05
momentum = 0.9
weight_decay = 1e-4

[schedule]
kind = "poly"
power = 0.9
warmup_epochs = 1

[compare]
strategies = ["standard", "inplace_2"]

[output]
log_every = 10
evaluate_every = 2
)";
}

int run_demo(const Options& given) {
  Options options = given;
  // A demo's output is always the same: a second `make demo` replaces the first.
  options.run.overwrite = true;
  if (!options.output.quiet && !options.output.folder.empty())  // compare() names a missing folder
    std::cout << "demo: " << options.model.name << " on " << options.data.images
              << " generated street scenes, " << options.train.epochs
              << " epochs, trained once per strategy from the same seed\n"
              << "(every setting: palimpsest demo --help, examples/demo.toml; curves and pictures will be in "
              << options.output.folder << "/index.html)\n"
              << std::endl;
  return compare(std::move(options), "palimpsest demo: the same training in less memory");
}

}  // namespace palimpsest::cli
