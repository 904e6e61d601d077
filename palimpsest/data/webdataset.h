#pragma once

#include "palimpsest/data/dataset.h"
#include "palimpsest/data/transforms.h"

#include <cstdint>
#include <memory>
#include <string>

namespace palimpsest::data {

struct WebDatasetOptions {
  int64_t classes = 0;
  bool labels_pixels = false;     ///< each pixel has a label, KEY.seg.png; false: each image has one, KEY.cls
  int64_t shuffle_buffer = 1000;  ///< examples, for each stream
  /// Shards that are read side by side: stream s of S fills the s-th of S equal parts of each batch, from
  /// shards of its own.
  int64_t streams = 1;
  bool skip_bad = false;  ///< leave out the rest of a damaged shard, and examples without image or label
};

/// Opens tar archives of examples ("shards"), in the layout of the WebDataset library. Members whose names
/// agree up to the first dot of their last part, KEY, and that lie next to each other are one example:
///   KEY.jpg, KEY.jpeg or KEY.png  the image
///   KEY.cls                       its class id as text, 0 to classes - 1
///   KEY.seg.png                   instead, for labels of pixels: one class id per pixel (data/segmentation_folder.h)
/// Other members, and examples of other members alone, are passed over. Endings may be upper case.
///
/// split: ROOT/SPLIT is a folder of .tar files, which are sorted by name, or a pattern of files:
/// "train-{000000..000146}.tar", "{a,b}.tar" (data/webdataset/braces.h). ROOT/classes.txt, if it exists,
/// names the classes, one per line without an empty line between.
///
/// Order of a shuffled epoch: shards are shuffled; the examples of the shards, one shard after another, go
/// through a buffer of `shuffle_buffer` examples, from which the next one is drawn at random. The order is
/// computed ahead and is a function of the seed and the epoch. So every example occurs once, and the loader's
/// promises hold (data/loader.h): the same bytes with any number of workers and of ranks, and a resumed epoch
/// goes on at its batch without reading what came before. Each process reads the shards front to back in
/// pieces of 8 MiB, which the system reads ahead.
///
/// Several processes: each reads its parts of all batches. With `streams` = their number, or a multiple of
/// it that divides the batch, each has shards of its own but for the end of an epoch, where the streams that
/// have examples left fill in for the others. With another number, processes read some shards together. Another
/// number of streams is another order.
///
/// The first opening reads all headers. SHARD.index beside a shard keeps what was found, if the folder may be
/// written, and is read instead as long as the shard has the same size and time.
///
/// Memory: 40 bytes and the name per example; each worker one example.
///
/// Throws Error(kData) at once for a missing shard, and unless skip_bad for a shard that is truncated or
/// damaged and for an example without image or label; when an example is read, as segmentation_folder does,
/// and for a class that is no number or out of range. With skip_bad faults() has one line per shard. Throws
/// Error(kUsage) for options out of range.
std::shared_ptr<Dataset> webdataset(const std::string& root, const std::string& split,
                                    const WebDatasetOptions& options, const TransformOptions& transform);

}  // namespace palimpsest::data
