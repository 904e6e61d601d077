#pragma once

#include "palimpsest/cli/options.h"

namespace palimpsest::cli {

// One function a command. Each gets complete, checked options (process-wide ones, such as the number of
// threads, are already in effect) and returns the exit code: 0, or 128 + the signal that ended a run after
// its checkpoint was saved. Anything wrong is thrown as palimpsest::Error, which main turns into one line and
// an exit code.

/// Trains a model; writes checkpoint, log and configuration into the output folder.
int run_train(const Options& options);
/// Loss and metrics of a checkpoint over the validation split.
int run_eval(const Options& options);
/// Colour pictures (segmentation) or class names (classification) for images.
int run_predict(const Options& options);
/// Layers, parameters and memory of a model.
int run_info(const Options& options);
/// Trains the same network once a strategy from the same seed and tabulates memory, time and accuracy.
int run_compare(const Options& options);
/// Weights of other programs as a file that eval, predict and train accept.
int run_import(const Options& options);
/// A trained model's weights under their standard names, for other programs and for inference.
int run_export(const Options& options);
/// The comparison with pictures: an HTML page in the output folder.
int run_demo(const Options& options);

}  // namespace palimpsest::cli
