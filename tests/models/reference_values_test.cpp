#include "palimpsest/models/resnext_preact.h"
#include "palimpsest/models/wide_resnet.h"
#include "tests/models/support.h"

#include <array>
#include <ostream>

namespace palimpsest::models {
namespace {

// Logits (0,0), (0,1), (1,0), (1,999) of networks filled by formula, in training mode, then in eval mode with
// the running statistics that this one batch left. Post-activation rows: torchvision 0.26 with every ReLU
// replaced by LeakyReLU(0.01), without auxiliary classifiers and dropout. EfficientNet and MobileNetV3: torchvision
// 0.26, without dropout. resnet50_preact: He et al.'s network in plain PyTorch. The In-Place ABN paper's networks
// (resnext50_preact, wide_resnet16, densenet264_deep_stem): its release, on normalizations of PyTorch. f64.
struct Row {
  const char* name;
  std::array<double, 4> training, evaluation;
  int64_t side = 64;  ///< of the images
};

std::ostream& operator<<(std::ostream& stream, const Row& row) {
  return stream << row.name;
}

class ReferenceValues : public ::testing::TestWithParam<Row> {};

TEST_P(ReferenceValues, LogitsAreThoseOfThePythonModels) {
  const auto& row = GetParam();
  ModelOptions options;
  if (drops_out(row.name)) options.dropout = 0;
  if (has_stochastic_depth(row.name)) options.stochastic_depth = 0;
  const auto model = make(row.name, options);
  fill_by_formula(*model);
  torch::NoGradGuard no_grad;
  for (const bool training : {true, false}) {
    model->train(training);
    const auto y = model->forward(images_by_formula(row.side));
    const auto got = torch::stack({y[0][0], y[0][1], y[1][0], y[1][999]});
    const auto& want = training ? row.training : row.evaluation;
    EXPECT_LE(relative_error(got, torch::tensor(at::ArrayRef<double>(want), torch::kFloat64)),
              kReorderedNetworkF64)
        << (training ? "training" : "evaluation") << ": " << got;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, ReferenceValues,
    ::testing::Values(
        Row{"resnet18",
            {0.595944885529331, -0.59736875965019, 0.645829530405011, 0.850975519782709},
            {0.222811499696498, -0.0844253471268154, 0.196715815090702, 0.0591050583938824}},
        Row{"resnet50",
            {0.304536993552901, -1.71636940292485, 0.224395173967277, 0.0771292656783814},
            {0.163205920011959, -0.179445077314165, 0.173662117979633, 0.112812650728469}},
        Row{"resnext50_32x4d",
            {0.409890921967669, -1.50059108624816, 0.51794551822343, 0.370682868387055},
            {0.101878664912189, 0.009621927342667, 0.0874275968568263, 0.0527918965747297}},
        Row{"densenet121",
            {-0.2619632028779536, -0.00233529066482938, -0.33226274290917823, 0.44114921394857126},
            {-0.06355788018062504, -0.0924947530266368, -0.064339470173998894, -0.01768755117692055}},
        Row{"efficientnet_b0",
            {-0.4695558052855761, 0.10143429452000452, 0.12051983247944657, -0.30466495368625124},
            {-0.049023368231424, 0.00423233056656469, -0.04902336863824477, 0.13232610161483616}},
        Row{"mobilenet_v3_large",
            {-0.10153489231125712, -0.20496768111241548, 0.09995286473727084, -0.08575543385171187},
            {-0.09232987772409353, -0.005761159440982298, -0.09232991269552494, -0.05483683047370105}},
        Row{"mobilenet_v3_small",
            {0.029912163258997898, -0.08523780591174351, 0.23394313199019098, 0.05619807916210087},
            {0.03492276306739894, 0.00724316692481651, 0.034923230215020376, -0.03590896120664885}},
        Row{"googlenet",
            {-0.428858123700938, 0.0953831782838686, -0.32044372027087, -1.03852893399267},
            {-0.0686598361786818, 0.0448855553607239, -0.0686160889644684, -0.0957774043131147}},
        Row{"inception_v3",
            {0.51140522163455, -0.518012438847174, 0.0601494420158413, -0.735955423137569},
            {0.0139966237358148, 0.0580215976770696, 0.0139968082155785, -0.142296695458932},
            75},
        Row{"resnet50_preact",
            {-0.221022085340806, -0.324995371465698, -0.559527678765831, -0.616605003392034},
            {-0.146495617806011, -0.0393917673536692, -0.162252759555719, -0.126379806985516}},
        Row{"resnext50_preact",
            {-0.4319033089922711, 0.3066555530013849, -0.3258354854107835, -0.07317979919777907},
            {-0.18669527933685426, 0.043894768253758654, -0.18709185604546524, -0.12592233285134938}},
        Row{"wide_resnet16",
            {0.22724504432373127, -0.10545510227212335, -0.23439807680042696, -0.6795892226394301},
            {-0.022997645003949435, 0.1421395346075541, -0.020521513516392018, -0.14835624361766842}},
        Row{"wide_resnet16_a2",
            {-0.21718451091514018, -0.15063737884940145, 0.32673984993740174, -0.377211822672357},
            {-0.014043281120559373, 0.12008017657352912, -0.0113786351922118, -0.12296868951235329}},
        Row{"densenet264_deep_stem",
            {-0.18193159477382714, 0.006060630225052021, -0.06994505588572965, 0.48748921001098683},
            {0.09807968609679232, -0.043976882094409274, 0.09782027894796586, 0.1445155677896391}}),
    [](const auto& info) { return std::string(info.param.name); });

// The features of the release's networks with dilation, at (0, 0, 0, 0), (0, 1, 0, 1), (1, 0, last, last) and
// (1, last, 2, 1).
void expect_features(Backbone& body, const std::array<double, 4>& training,
                     const std::array<double, 4>& evaluation) {
  fill_by_formula(body);
  const torch::NoGradGuard no_grad;
  for (const bool trains : {true, false}) {
    body.train(trains);
    const auto y = body.features(images_by_formula());
    const auto got = torch::stack({y[0][0][0][0], y[0][1][0][1], y[1][0][-1][-1], y[1][-1][2][1]});
    EXPECT_LE(relative_error(
                  got, torch::tensor(at::ArrayRef<double>(trains ? training : evaluation), torch::kFloat64)),
              kReorderedNetworkF64)
        << (trains ? "training" : "evaluation") << ": " << got;
  }
}

TEST(DilatedReferenceValues, FeaturesAreThoseOfTheRelease) {
  const auto resnext = [](int64_t output_stride) {
    const BackboneOptions options{.classes = 0, .output_stride = output_stride};
    return PreactResNeXt("resnext50_preact", {3, 4, 6, 3}, options);
  };
  auto eighth = resnext(8), sixteenth = resnext(16);
  expect_features(
      eighth, {0.9975179227103064, -0.0016047570149342752, -0.025513404980247307, -0.006578759942930231},
      {-0.0008495488278660239, -0.00108774986781496, -0.0018669075736677144, -0.0006243233775325545});
  expect_features(
      sixteenth, {0.8106667326154072, 0.7349584635159864, 1.6469015720007494, -0.009600045561352471},
      {-0.0009330737040486675, -0.001271077655927404, -0.0012587322620185388, -7.670447239943933e-05});
  WideResNet wide({"wide_resnet16_a2", {1, 1, 1, 1, 1, 1}, true},
                  {.classes = 0, .output_stride = 8, .dropout = 0});
  expect_features(
      wide, {-0.0021486948636808135, -0.0009954517486783939, 2.1290365333666523, -0.014761996674194653},
      {0.03217321324221153, -0.0021200912022108173, 0.014479311176753442, -0.0003199518481435869});
}

}  // namespace
}  // namespace palimpsest::models
