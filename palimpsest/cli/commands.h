#pragma once

#include "palimpsest/cli/options.h"

namespace palimpsest::cli {

// One function per command. It takes complete, checked options; process-wide ones, such as the number of
// threads, are already in effect. It returns the exit code: 0, or 128 + the signal that ended a run after its
// checkpoint was saved. It throws palimpsest::Error, which run_program turns into one line and an exit code.

/// Trains a model; writes checkpoint, log and configuration into the output folder.
int run_train(const Options& options);
/// Prints loss and metrics of a checkpoint over the validation split.
int run_eval(const Options& options);
/// Writes colour pictures (segmentation) or prints class names (classification) for images.
int run_predict(const Options& options);
/// Prints layers, parameters and memory of a model.
int run_info(const Options& options);
/// Trains the same network once per strategy, from the same seed, and tabulates memory, time and accuracy.
int run_compare(const Options& options);
/// Converts weights of other programs to a file that eval, predict and train accept.
int run_import(const Options& options);
/// Writes a trained model's weights under their standard names, for other programs and for inference.
int run_export(const Options& options);
/// Runs the comparison of demo_config() and writes an HTML page with pictures into the output folder.
int run_demo(const Options& options);
/// Runs a row of the papers' tables (cli/paper_rows.h): its training, or with run.small a comparison of its shape
/// at a size for two cores. Prints what the paper reports beside what came out.
int run_reproduce(const Options& options);
/// Looks through the data set in a folder and prints what was expected and what is there. Throws Error(kData) after
/// it printed faults.
int run_data(const Options& options);

/// Writes an HTML page about the runs in some folders. Reads neither data nor networks.
int run_report(const Options& options);

}  // namespace palimpsest::cli
