#pragma once

#include "palimpsest/data/dataset.h"
#include "palimpsest/data/transforms.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/// Generated data sets of the program (`--data generated`, `palimpsest demo`); the library does not install
/// them.
namespace palimpsest::data::generated {

/// Makes a segmentation data set of street-like scenes, each drawn from (seed, index) only: sky, buildings,
/// road, pavement, trees, cars, people, poles, with textures, and void pixels along object borders. It has
/// `size` images of height x width pixels, both between 16 and 8192. The classes are street_class_names();
/// the ignore id must not be one of their ids. Throws Error(kUsage) for values out of range.
std::shared_ptr<Dataset> streets(int64_t size, int64_t height, int64_t width, uint64_t seed,
                                 const TransformOptions& transform);

/// Returns CamVid's eleven classes in CamVid's order: Sky, Building, Pole, Road, Pavement, Tree, SignSymbol,
/// Fence, Car, Pedestrian, Bicyclist.
const std::vector<std::string>& street_class_names();

}  // namespace palimpsest::data::generated
