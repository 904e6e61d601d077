#include "palimpsest/nn/strategy.h"

#include "palimpsest/kernels/activation.h"
#include "palimpsest/nn/batch_norm_act.h"
#include "tests/nn/support.h"

namespace palimpsest::nn {
namespace {

TEST(Strategy, EveryNameIsParsedAndTheAliasMeansTheFusedLayer) {
  for (const auto& name : strategy_names()) EXPECT_NO_THROW(parse_strategy(name)) << name;
  EXPECT_EQ(parse_strategy("standard"), Strategy::kStandard);
  EXPECT_EQ(parse_strategy("inplace"), Strategy::kInplace2);
  EXPECT_EQ(parse_strategy("inplace_1bit"), Strategy::kInplaceBit) << "the name in old files";
  for (const auto& name : strategy_names()) {
    EXPECT_EQ(to_string(parse_strategy(name)), name == "inplace" ? "inplace_2" : name);
  }
}

TEST(Strategy, APairThatCannotBeExactIsRefusedWithTheStrategiesThatCan) {
  for (const auto& [activation, name, is_listed] : kernels::kActivations) {
    if (kernels::is_invertible(activation)) continue;
    const bool branches = kernels::has_branches(activation);
    for (const auto strategy : {Strategy::kInplace1, Strategy::kInplace2, Strategy::kInplaceBit}) {
      if (branches && strategy == Strategy::kInplaceBit) continue;
      const auto error = usage_error([&] { BatchNormAct(4, NormOptions{strategy, activation}); });
      EXPECT_NE(error.find("'" + to_string(activation) + "' cannot be inverted"), std::string::npos) << error;
      EXPECT_NE(error.find(branches ? "standard, checkpoint, checkpoint_normalized, inplace_bit, store_y"
                                    : "standard, checkpoint, checkpoint_normalized, store_y"),
                std::string::npos)
          << error;
    }
    for (const auto strategy :
         {Strategy::kStandard, Strategy::kCheckpoint, Strategy::kCheckpointNormalized, Strategy::kStoreY})
      EXPECT_NO_THROW(BatchNormAct(4, NormOptions{strategy, activation}));
    if (branches) {
      EXPECT_NO_THROW(BatchNormAct(4, NormOptions{Strategy::kInplaceBit, activation}));
    }
  }
}

TEST(Strategy, AnUnknownNameGetsTheNearestOne) {
  EXPECT_EQ(usage_error([] { parse_strategy("inplce_2"); }),
            "unknown strategy 'inplce_2'; did you mean 'inplace_2'? (known: standard, checkpoint, "
            "checkpoint_normalized, inplace_1, inplace_2, inplace, inplace_bit, store_y)");
}

}  // namespace
}  // namespace palimpsest::nn
