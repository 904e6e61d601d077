#include "palimpsest/train/report.h"

#include "palimpsest/train/report/exponent_chart.h"

#include "palimpsest/base/error.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/io/image.h"
#include "tests/support/temporary_folder.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace palimpsest::train {
namespace {

using testing::TemporaryFolder;

constexpr int64_t kMiB = 1 << 20;

ReportRun sample_run(const std::string& name, int64_t kept, int64_t peak, double seconds, double iou,
                     int64_t largest) {
  ReportRun run;
  run.name = name;
  for (int i = 1; i <= 20; ++i) {
    StepRecord step;
    step.step = i;
    step.loss = i <= 10 ? 9.0 : 0.1 * (i - 10);  // the last ten: 0.1 ... 1.0, mean 0.55
    run.steps.push_back(step);
  }
  for (int epoch : {1, 2}) {
    EvaluationRecord e;
    e.epoch = epoch;
    e.step = 10 * epoch;
    e.segmentation = true;
    e.metrics.mean_iou = iou * epoch / 2;
    e.metrics.class_iou = {iou, std::nan("")};
    run.evaluations.push_back(e);
  }
  run.kept_bytes = kept;
  run.peak_bytes = peak;
  run.seconds_per_step = seconds;
  run.largest_batch = largest;
  run.timeline = {{0.0, 10 * kMiB}, {0.1, peak}, {0.2, 10 * kMiB}};
  run.marks = {{0.0, "forward"}, {0.1, "backward"}};
  return run;
}

Report sample_report() {
  Report report;
  report.title = "standard & <inplace>";
  report.setup = {{"model", "resnet18"}};
  report.runs = {sample_run("standard", 100 * kMiB, 200 * kMiB, 0.5, 0.6, 8),
                 sample_run("inplace_2", 50 * kMiB, 150 * kMiB, 0.45, 0.63, 12)};
  report.memory_bytes = 200 * kMiB;
  for (int i = 0; i < 2; ++i) {
    EvaluationDetails& details = report.runs[i].details.emplace();
    details.segmentation = true;
    details.class_names = {"road", "sky"};
    details.class_colors = at::tensor({128, 64, 128, 70, 130, 180}, at::kByte).view({2, 3});
    details.confusion = at::tensor({30, 10, 0, 0}, at::kLong).view({2, 2});
    details.pictures = {{"scene 0", at::arange(4 * 5 * 3, at::kByte).view({4, 5, 3}),
                         at::tensor({0, 0, 1, 1, 255}, at::kByte).repeat({4, 1}),
                         at::full({4, 5}, i, at::kByte)}};
  }
  return report;
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::string decode_base64(const std::string& text) {
  static const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int have = 0;
  for (char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<uint32_t>(digits.find(c));
    if ((have += 6) >= 8) bytes += static_cast<char>(bits >> (have -= 8) & 255);
  }
  return bytes;
}

/// The pictures of a page, decoded, in order.
std::vector<at::Tensor> pictures_of(const std::string& html) {
  const TemporaryFolder folder;
  const std::string mark = "base64,";
  std::vector<at::Tensor> pictures;
  for (size_t at = html.find(mark); at != std::string::npos; at = html.find(mark, at)) {
    at += mark.size();
    io::write_file_atomically(folder / "p.png", decode_base64(html.substr(at, html.find('"', at) - at)));
    pictures.push_back(io::read_image(folder / "p.png"));
  }
  return pictures;
}

/// The line of the table that starts with `label`, as words after it.
std::vector<std::string> row(const std::string& table, const std::string& label) {
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(label, 0) != 0) continue;
    std::istringstream rest(line.substr(label.size()));
    return {std::istream_iterator<std::string>(rest), {}};
  }
  return {};
}

using Words = std::vector<std::string>;

TEST(Report, TheTableHasEachFigureOfBothRunsAndTheirRatio) {
  const std::string table = to_table(sample_report());
  EXPECT_EQ(row(table, ""), (Words{"standard", "inplace_2", "ratio"}));
  EXPECT_EQ(row(table, "kept MiB"), (Words{"100.0", "50.0", "0.500"}));
  EXPECT_EQ(row(table, "peak MiB"), (Words{"200.0", "150.0", "0.750"}));
  EXPECT_EQ(row(table, "seconds per step"), (Words{"0.500", "0.450", "0.900"}));
  EXPECT_EQ(row(table, "loss"), (Words{"0.5500", "0.5500", "1.000"}));
  EXPECT_EQ(row(table, "mean IoU, %"), (Words{"60.0", "63.0", "1.050"}));
  EXPECT_EQ(row(table, "largest batch in 200 MiB"), (Words{"8", "12", "1.500"}));
}

TEST(Report, RatiosOfAThirdRunAreToTheFirst) {
  Report report = sample_report();
  report.runs.push_back(sample_run("third", 25 * kMiB, 100 * kMiB, 1, 0.3, 16));
  EXPECT_EQ(row(to_table(report), "kept MiB"), (Words{"100.0", "50.0", "0.500", "25.0", "0.250"}));
}

TEST(Report, WhatIsNotKnownIsADash) {
  Report report = sample_report();
  for (auto& run : report.runs) run.steps.clear(), run.evaluations.clear();
  EXPECT_EQ(row(to_table(report), "loss"), (Words{"-", "-", "-"}));
  EXPECT_EQ(row(to_table(report), "mean IoU, %"), (Words{"-", "-", "-"}));
  EXPECT_NE(to_html(report).find("</html>"), std::string::npos);
}

TEST(Report, AClassificationShowsItsAccuracy) {
  Report report = sample_report();
  for (auto& run : report.runs) {
    run.details.reset();
    for (auto& e : run.evaluations) {
      e.segmentation = false;
      e.metrics = {};
      e.metrics.top1 = 0.25;
    }
  }
  EXPECT_EQ(row(to_table(report), "top-1 accuracy, %"), (Words{"25.0", "25.0", "1.000"}));
}

TEST(Report, ThePageOpensOffline) {
  const std::string html = to_html(sample_report());
  EXPECT_EQ(html.rfind("<!DOCTYPE html>", 0), 0u);
  EXPECT_EQ(count(html, "<svg"), 5);  // memory, loss, score, and the confusion of both runs
  EXPECT_EQ(count(html, "</svg>"), 5);
  // Nothing is fetched: every source is inline, and the only address is the name of the SVG format.
  EXPECT_EQ(count(html, "src="), count(html, "src=\"data:image/png;base64,"));
  EXPECT_EQ(count(html, "://"), count(html, "xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_EQ(count(html, "default-src 'none'"), 1);
  for (const char* part : {"<script", "<link", "@import", "url(", "href"})
    EXPECT_EQ(count(html, part), 0) << part;
  EXPECT_EQ(count(html, "<inplace>"), 0);  // names are escaped
  EXPECT_GE(count(html, "standard &amp; &lt;inplace&gt;"), 2);
}

TEST(Report, HistogramsOfGradientsAreChartsOfTheirRuns) {
  Report report = sample_report();
  ExponentRecord record;
  record.step = 7;
  record.activations.add(at::full({8}, 0x1p-26));
  record.weights.add(at::full({8}, 0.5));
  report.runs[1].exponents = record;
  const std::string html = to_html(report);
  EXPECT_EQ(count(html, "<svg"), 6);
  EXPECT_EQ(count(html, "<h2>Gradients by exponent</h2>"), 1);
  EXPECT_NE(html.find(to_svg(record)), std::string::npos);
}

TEST(Report, PicturesAreImageTruthAndOnePredictionARunInTheClassColours) {
  const Report report = sample_report();
  const auto pictures = pictures_of(to_html(report));
  ASSERT_EQ(pictures.size(), 4u);
  const EvaluationDetails& details = *report.runs[0].details;
  EXPECT_TRUE(at::equal(pictures[0], details.pictures[0].image));
  const at::Tensor road = details.class_colors[0], sky = details.class_colors[1],
                   black = at::zeros({3}, at::kByte);
  EXPECT_TRUE(at::equal(pictures[1][0][0], road));
  EXPECT_TRUE(at::equal(pictures[1][3][2], sky));
  EXPECT_TRUE(at::equal(pictures[1][2][4], black));  // void
  EXPECT_TRUE(at::equal(pictures[2], road.expand({4, 5, 3})));
  EXPECT_TRUE(at::equal(pictures[3], sky.expand({4, 5, 3})));
}

TEST(Report, TheLegendNamesEveryClassWithItsColour) {
  const std::string html = to_html(sample_report());
  EXPECT_NE(html.find("rgb(128,64,128)\"></i>road"), std::string::npos);
  EXPECT_NE(html.find("rgb(70,130,180)\"></i>sky"), std::string::npos);
}

TEST(Report, TheMemoryCurveShowsBothRunsAndTheirMarks) {
  const std::string svg = memory_svg(sample_report());
  EXPECT_NE(svg.find("standard, peak 200 MiB"), std::string::npos);
  EXPECT_NE(svg.find("inplace_2, peak 150 MiB"), std::string::npos);
  EXPECT_EQ(count(svg, ">backward<"), 2);
  EXPECT_EQ(count(svg, "<path"), 2);
}

TEST(Report, TheJsonHoldsTheExactFigures) {
  const auto json = nlohmann::json::parse(to_json(sample_report()));
  EXPECT_EQ(json["memory_bytes"], 200 * kMiB);
  ASSERT_EQ(json["runs"].size(), 2u);
  const auto& run = json["runs"][1];
  EXPECT_EQ(run["name"], "inplace_2");
  EXPECT_EQ(run["kept_bytes"], 50 * kMiB);
  EXPECT_EQ(run["largest_batch"], 12);
  EXPECT_EQ(run["losses"].size(), 20u);
  EXPECT_DOUBLE_EQ(run["mean_iou"], 0.63);
  EXPECT_TRUE(run["class_iou"][1].is_null());
  EXPECT_DOUBLE_EQ(json["ratios_to_first"]["kept MiB"][1], 0.5);
}

TEST(Report, RunsThatSawOtherPicturesHaveRowsOfTheirOwn) {
  Report report = sample_report();
  EvaluationPicture& other = report.runs[1].details->pictures[0];
  other.image = other.image + 1;
  EXPECT_EQ(pictures_of(to_html(report)).size(), 6u);  // image, truth and prediction of each run
}

TEST(Report, TheConfusionOfARunIsNormalizedByTheTruth) {
  const std::string html = to_html(sample_report());
  EXPECT_EQ(count(html, "truth road, prediction road: 75.00 %"), 2);
  EXPECT_EQ(count(html, "truth road, prediction sky: 25.00 %"), 2);
  EXPECT_EQ(count(html, "truth sky, prediction"), 0);  // the class does not occur
  EXPECT_EQ(count(html, "<th scope=\"row\">road \u2192 sky</th><td>25.0</td><td>10</td>"), 2);
}

TEST(Report, SettingsThatDifferComeBeforeThoseThatAllRunsShare) {
  Report report = sample_report();
  report.runs[0].settings = {{"optimizer.lr", "0.1"}, {"train.batch", "8"}, {"loss.kind", "<bootstrap>"}};
  report.runs[1].settings = {{"optimizer.lr", "0.2"}, {"train.batch", "8"}};
  const std::string html = to_html(report);
  EXPECT_NE(html.find("<th scope=\"row\">optimizer.lr</th><td>0.1</td><td>0.2</td>"), std::string::npos);
  EXPECT_NE(html.find("<th scope=\"row\">loss.kind</th><td>&lt;bootstrap&gt;</td><td>-</td>"),
            std::string::npos);
  EXPECT_NE(html.find("<summary>1 settings that all runs share</summary>"), std::string::npos);
}

TEST(Report, RunsOfBothTasksHaveAScoreAndAChartOfTheirOwn) {
  Report report = sample_report();
  report.memory_bytes = 0;
  report.runs[1].details.reset();
  for (auto& e : report.runs[1].evaluations) {
    e.segmentation = false;
    e.metrics = {};
    e.metrics.top1 = 0.25;
  }
  const std::string table = to_table(report), html = to_html(report);
  EXPECT_EQ(row(table, "mean IoU, %"), (Words{"60.0", "-", "-"}));
  EXPECT_EQ(row(table, "top-1 accuracy, %"), (Words{"-", "25.0", "-"}));
  EXPECT_EQ(count(html, "<title>Mean IoU on the validation images</title>"), 1);
  EXPECT_EQ(count(html, "<title>Top-1 accuracy on the validation images</title>"), 1);
  EXPECT_EQ(count(html, "class=\"summary\""), 0) << "networks that differ are not compared in a sentence";
}

TEST(Report, LabelledImagesShowTheNamesOfTruthAndPrediction) {
  Report report;
  ReportRun& run = report.runs.emplace_back();
  run.name = "run";
  run.details.emplace();
  run.details->class_names = {"cat", "<dog>"};
  run.details->class_colors = at::zeros({2, 3}, at::kByte);
  run.details->pictures = {{"photo", at::zeros({2, 2, 3}, at::kByte), at::tensor(1), at::tensor(0)}};
  const std::string html = to_html(report);
  EXPECT_NE(html.find("truth: <b>&lt;dog&gt;</b><br>predicted: cat"), std::string::npos);
}

TEST(Report, WritingItMakesTheFourFiles) {
  const TemporaryFolder folder;
  const Report report = sample_report();
  write_report(folder / "new", report);
  EXPECT_EQ(io::read_file(folder / "new/index.html"), to_html(report));
  EXPECT_EQ(io::read_file(folder / "new/memory.svg"), memory_svg(report));
  EXPECT_EQ(io::read_file(folder / "new/loss.svg"), loss_svg(report));
  EXPECT_EQ(io::read_file(folder / "new/results.json"), to_json(report));
}

TEST(Report, AFolderThatCannotBeMadeIsAnOutputError) {
  const TemporaryFolder folder;
  io::write_file_atomically(folder / "file", "x");
  try {
    write_report(folder / "file" / "below", sample_report());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutput);
  }
}

}  // namespace
}  // namespace palimpsest::train
