// The tables of the three papers that models/inception.h and models/torchvision_inception.h name.
#include "palimpsest/models/inception.h"
#include "palimpsest/models/torchvision_inception.h"

#include <array>

namespace palimpsest::models {
namespace {

using Chain = std::vector<BranchConvolution>;

BranchConvolution one(int64_t channels) {
  return {channels, 1, 1};
}
BranchConvolution three(int64_t channels, int64_t stride = 1) {
  return {channels, 3, 3, stride};
}
BranchConvolution five(int64_t channels) {
  return {channels, 5, 5};
}
BranchConvolution row(int64_t channels, int64_t width) {
  return {channels, 1, width};
}
BranchConvolution column(int64_t channels, int64_t height) {
  return {channels, height, 1};
}

/// Returns a branch that ends in one convolution.
BranchShape branch(Chain convolutions, BranchPool pool = BranchPool::kNone) {
  const BranchConvolution end = convolutions.back();
  convolutions.pop_back();
  return {pool, std::move(convolutions), {end}};
}

const BranchShape kPassed{BranchPool::kMax, {}, {}};

/// Returns the shape with all channels divided by `divisor`.
InceptionShape divided(InceptionShape shape, int64_t divisor) {
  for (auto& s : shape.stem) s.convolution.channels /= divisor;
  for (auto& block : shape.blocks)
    for (auto& b : block.branches)
      for (auto* convolutions : {&b.chain, &b.ends})
        for (auto& c : *convolutions) c.channels /= divisor;
  return shape;
}

/// The stem of v1 and v2: 3x3 and pooling, 1x1, 3x3, with 64, 64 and 192 channels.
std::vector<InceptionShape::Stem> stem_of_192() {
  return {{three(64), true}, {one(64)}, {three(192)}};
}

/// A row of the table of v1: 1x1; 1x1 and 3x3; 1x1 and 5x5; max pooling and 1x1.
InceptionBlockShape v1(const std::string& name, const std::array<int64_t, 6>& c, bool pooled = false) {
  return {"inception" + name,
          {branch({one(c[0])}), branch({one(c[1]), three(c[2])}), branch({one(c[3]), five(c[4])}),
           branch({one(c[5])}, BranchPool::kMax)},
          1,
          pooled};
}

/// A row of the table of v2: 1x1; 1x1 and 3x3; 1x1, 3x3 and 3x3; pooling and 1x1.
InceptionBlockShape v2(const std::string& name, const std::array<int64_t, 6>& c,
                       BranchPool pool = BranchPool::kAverage) {
  return {"inception" + name,
          {branch({one(c[0])}), branch({one(c[1]), three(c[2])}),
           branch({one(c[3]), three(c[4]), three(c[4])}), branch({one(c[5])}, pool)}};
}

/// A block that halves the image: as v2, without 1x1, and the max pooling passes its channels through.
InceptionBlockShape v2_halving(const std::string& name, const std::array<int64_t, 4>& c) {
  return {"inception" + name,
          {branch({one(c[0]), three(c[1], 2)}), branch({one(c[2]), three(c[3]), three(c[3], 2)}), kPassed},
          2};
}

/// v3, figure 5: 1x1; 1x1 and 5x5; 1x1, 3x3 and 3x3; average and 1x1.
InceptionBlockShape v3_wide(const std::string& name, int64_t pool_channels) {
  return {"mixed" + name,
          {branch({one(64)}), branch({one(48), five(64)}), branch({one(64), three(96), three(96)}),
           branch({one(pool_channels)}, BranchPool::kAverage)}};
}

/// v3, figure 6 with n = 7 and `inner` inner channels.
InceptionBlockShape v3_seven(const std::string& name, int64_t inner) {
  return {"mixed" + name,
          {branch({one(192)}), branch({one(inner), row(inner, 7), column(192, 7)}),
           branch({one(inner), column(inner, 7), row(inner, 7), column(inner, 7), row(192, 7)}),
           branch({one(192)}, BranchPool::kAverage)}};
}

/// v3, figure 7: two branches end in 1x3 beside 3x1.
InceptionBlockShape v3_split(const std::string& name) {
  const Chain ends = {row(384, 3), column(384, 3)};
  return {"mixed" + name,
          {branch({one(320)}),
           {BranchPool::kNone, {one(384)}, ends},
           {BranchPool::kNone, {one(448), three(384)}, ends},
           branch({one(192)}, BranchPool::kAverage)}};
}

using UnitChain = std::vector<UnitShape>;
using UnitBranch = UnitBlockShape::Branch;

/// Returns a branch of units that ends in one.
UnitBranch unit_branch(UnitChain units, BranchPool pool = BranchPool::kNone) {
  UnitShape end = std::move(units.back());
  units.pop_back();
  return {pool, std::move(units), {std::move(end)}};
}

const UnitBranch kPassedUnits{BranchPool::kMax, {}, {}};

TorchvisionInceptionShape divided(TorchvisionInceptionShape shape, int64_t divisor) {
  const auto divide = [&](UnitChain& units) {
    for (UnitShape& u : units) u.convolution.channels /= divisor;
  };
  for (auto& stem : shape.stem) divide(stem.units);
  for (auto& block : shape.blocks)
    for (auto& b : block.branches) divide(b.chain), divide(b.ends);
  return shape;
}

/// v1 in torchvision's form: 1x1; 1x1 and 3x3; 1x1 and 3x3; max pooling and 1x1.
UnitBlockShape v1_units(const std::string& name, const std::array<int64_t, 6>& c,
                        std::optional<UnitPool> pool = std::nullopt) {
  return {"inception" + name,
          {unit_branch({{"branch1", one(c[0])}}),
           unit_branch({{"branch2.0", one(c[1])}, {"branch2.1", three(c[2])}}),
           unit_branch({{"branch3.0", one(c[3])}, {"branch3.1", three(c[4])}}),
           unit_branch({{"branch4.1", one(c[5])}}, BranchPool::kMax)},
          1,
          pool};
}

/// The blocks of v3 that v3_wide, v3_seven and v3_split make, under torchvision's names.
UnitBlockShape v3_wide_units(const std::string& name, int64_t pool_channels) {
  return {"Mixed_" + name,
          {unit_branch({{"branch1x1", one(64)}}),
           unit_branch({{"branch5x5_1", one(48)}, {"branch5x5_2", five(64)}}),
           unit_branch(
               {{"branch3x3dbl_1", one(64)}, {"branch3x3dbl_2", three(96)}, {"branch3x3dbl_3", three(96)}}),
           unit_branch({{"branch_pool", one(pool_channels)}}, BranchPool::kAverage)}};
}

UnitBlockShape v3_seven_units(const std::string& name, int64_t inner) {
  return {
      "Mixed_" + name,
      {unit_branch({{"branch1x1", one(192)}}),
       unit_branch(
           {{"branch7x7_1", one(inner)}, {"branch7x7_2", row(inner, 7)}, {"branch7x7_3", column(192, 7)}}),
       unit_branch({{"branch7x7dbl_1", one(inner)},
                    {"branch7x7dbl_2", column(inner, 7)},
                    {"branch7x7dbl_3", row(inner, 7)},
                    {"branch7x7dbl_4", column(inner, 7)},
                    {"branch7x7dbl_5", row(192, 7)}}),
       unit_branch({{"branch_pool", one(192)}}, BranchPool::kAverage)}};
}

UnitBlockShape v3_split_units(const std::string& name) {
  return {"Mixed_" + name,
          {unit_branch({{"branch1x1", one(320)}}),
           {BranchPool::kNone,
            {{"branch3x3_1", one(384)}},
            {{"branch3x3_2a", row(384, 3)}, {"branch3x3_2b", column(384, 3)}}},
           {BranchPool::kNone,
            {{"branch3x3dbl_1", one(448)}, {"branch3x3dbl_2", three(384)}},
            {{"branch3x3dbl_3a", row(384, 3)}, {"branch3x3dbl_3b", column(384, 3)}}},
           unit_branch({{"branch_pool", one(192)}}, BranchPool::kAverage)}};
}

}  // namespace

InceptionShape googlenet(const std::string& name, int64_t divisor) {
  return divided({name,
                  false,
                  stem_of_192(),
                  {v1("3a", {64, 96, 128, 16, 32, 32}), v1("3b", {128, 128, 192, 32, 96, 64}, true),
                   v1("4a", {192, 96, 208, 16, 48, 64}), v1("4b", {160, 112, 224, 24, 64, 64}),
                   v1("4c", {128, 128, 256, 24, 64, 64}), v1("4d", {112, 144, 288, 32, 64, 64}),
                   v1("4e", {256, 160, 320, 32, 128, 128}, true), v1("5a", {256, 160, 320, 32, 128, 128}),
                   v1("5b", {384, 192, 384, 48, 128, 128})},
                  0.4},
                 divisor);
}

InceptionShape inception_v2(const std::string& name, int64_t divisor) {
  return divided({name,
                  true,
                  stem_of_192(),
                  {v2("3a", {64, 64, 64, 64, 96, 32}), v2("3b", {64, 64, 96, 64, 96, 64}),
                   v2_halving("3c", {128, 160, 64, 96}), v2("4a", {224, 64, 96, 96, 128, 128}),
                   v2("4b", {192, 96, 128, 96, 128, 128}), v2("4c", {160, 128, 160, 128, 160, 128}),
                   v2("4d", {96, 128, 192, 160, 192, 128}), v2_halving("4e", {128, 192, 192, 256}),
                   v2("5a", {352, 192, 320, 160, 224, 128}),
                   v2("5b", {352, 192, 320, 192, 224, 128}, BranchPool::kMax)}},
                 divisor);
}

InceptionShape inception_v2_imagenet() {
  InceptionShape shape = inception_v2("inception_v2", 1);
  shape.stem = {{{64, 7, 7, 2}, true}, {one(64)}, {three(192), true}};
  return shape;
}

InceptionShape inception_v3(const std::string& name, int64_t divisor) {
  const InceptionBlockShape to_8 = {
      "mixed6a", {branch({three(384, 2)}), branch({one(64), three(96), three(96, 2)}), kPassed}, 2};
  const InceptionBlockShape to_4 = {"mixed7a",
                                    {branch({one(192), three(320, 2)}),
                                     branch({one(192), row(192, 7), column(192, 7), three(192, 2)}), kPassed},
                                    2};
  return divided(
      {name,
       true,
       {{three(32)}, {three(32)}, {three(64), true}, {one(80)}, {three(192)}},
       {v3_wide("5b", 32), v3_wide("5c", 64), v3_wide("5d", 64), to_8, v3_seven("6b", 128),
        v3_seven("6c", 160), v3_seven("6d", 160), v3_seven("6e", 192), to_4, v3_split("7b"), v3_split("7c")},
       0.5},
      divisor);
}

TorchvisionInceptionShape googlenet_imagenet(int64_t divisor) {
  const UnitPool three_up{3, 2, true}, two_up{2, 2, true};
  return divided(
      {"googlenet",
       {{{{"conv1", {64, 7, 7, 2}}}, three_up}, {{{"conv2", one(64)}, {"conv3", three(192)}}, three_up}},
       {v1_units("3a", {64, 96, 128, 16, 32, 32}), v1_units("3b", {128, 128, 192, 32, 96, 64}, three_up),
        v1_units("4a", {192, 96, 208, 16, 48, 64}), v1_units("4b", {160, 112, 224, 24, 64, 64}),
        v1_units("4c", {128, 128, 256, 24, 64, 64}), v1_units("4d", {112, 144, 288, 32, 64, 64}),
        v1_units("4e", {256, 160, 320, 32, 128, 128}, two_up), v1_units("5a", {256, 160, 320, 32, 128, 128}),
        v1_units("5b", {384, 192, 384, 48, 128, 128})},
       0.4},
      divisor);
}

TorchvisionInceptionShape inception_v3_imagenet(int64_t divisor) {
  const UnitBlockShape to_17 = {"Mixed_6a",
                                {unit_branch({{"branch3x3", three(384, 2), false}}),
                                 unit_branch({{"branch3x3dbl_1", one(64)},
                                              {"branch3x3dbl_2", three(96)},
                                              {"branch3x3dbl_3", three(96, 2), false}}),
                                 kPassedUnits},
                                2};
  const UnitBlockShape to_8 = {
      "Mixed_7a",
      {unit_branch({{"branch3x3_1", one(192)}, {"branch3x3_2", three(320, 2), false}}),
       unit_branch({{"branch7x7x3_1", one(192)},
                    {"branch7x7x3_2", row(192, 7)},
                    {"branch7x7x3_3", column(192, 7)},
                    {"branch7x7x3_4", three(192, 2), false}}),
       kPassedUnits},
      2};
  return divided({"inception_v3",
                  {{{{"Conv2d_1a_3x3", three(32, 2), false},
                     {"Conv2d_2a_3x3", three(32), false},
                     {"Conv2d_2b_3x3", three(64)}},
                    {}},
                   {{{"Conv2d_3b_1x1", one(80)}, {"Conv2d_4a_3x3", three(192), false}}, {}}},
                  {v3_wide_units("5b", 32), v3_wide_units("5c", 64), v3_wide_units("5d", 64), to_17,
                   v3_seven_units("6b", 128), v3_seven_units("6c", 160), v3_seven_units("6d", 160),
                   v3_seven_units("6e", 192), to_8, v3_split_units("7b"), v3_split_units("7c")},
                  0.5},
                 divisor);
}

}  // namespace palimpsest::models
