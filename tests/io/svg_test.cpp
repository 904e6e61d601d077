#include "palimpsest/io/svg.h"

#include "tests/support/tolerance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <vector>

namespace palimpsest::io {
namespace {

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

/// The d attribute of the first path.
std::string first_path(const std::string& svg) {
  const size_t from = svg.find("<path d=\"") + 9;
  return svg.substr(from, svg.find('"', from) - from);
}

/// The number that `pattern` captures, wherever it matches.
std::vector<double> numbers(const std::string& text, const char* pattern) {
  std::vector<double> result;
  const std::regex number(pattern);
  for (std::sregex_iterator i(text.begin(), text.end(), number), end; i != end; ++i)
    result.push_back(std::stod((*i)[1]));
  return result;
}

/// Every y coordinate of an "M x,y L x,y" path, in pixels (small is high).
std::vector<double> heights(const std::string& path) {
  return numbers(path, "[ML][-0-9.]+,([-0-9.]+)");
}

TEST(RoundTicks, AreOneTwoOrFiveTimesAPowerOfTenAndCoverTheRange) {
  EXPECT_EQ(round_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(round_ticks(0, 1234, 5), (std::vector<double>{0, 200, 400, 600, 800, 1000, 1200, 1400}));
  EXPECT_EQ(round_ticks(-3, 4, 7), (std::vector<double>{-3, -2, -1, 0, 1, 2, 3, 4}));
  for (double high : {1e-7, 0.3, 0.7, 1.0, 9.99, 1e3, 123456.0, 1e12}) {
    const auto ticks = round_ticks(0, high, 5);
    EXPECT_EQ(ticks.front(), 0);
    EXPECT_GE(ticks.back(), high * (1 - testing::kTickRounding)) << high;
    EXPECT_LT(ticks[ticks.size() - 2], high) << high;  // no tick more than needed
    EXPECT_GE(ticks.size(), 4u);
    EXPECT_LE(ticks.size(), 10u);
  }
}

TEST(RoundTicks, ARangeOfOneValueStillHasAScale) {
  EXPECT_GE(round_ticks(0, 0, 5).size(), 2u);
  EXPECT_GE(round_ticks(7, 7, 5).size(), 2u);
}

TEST(TickLabel, HasTheDecimalsOfItsStepAndCommasBetweenThousands) {
  EXPECT_EQ(tick_label(1250, 250), "1,250");
  EXPECT_EQ(tick_label(1234567, 1), "1,234,567");
  EXPECT_EQ(tick_label(999, 1), "999");
  EXPECT_EQ(tick_label(0.30000000000000004, 0.1), "0.3");
  EXPECT_EQ(tick_label(0.05, 0.05), "0.05");
  EXPECT_EQ(tick_label(-1500, 500), "\u22121,500");
  EXPECT_EQ(tick_label(-1e-18, 0.1), "0.0");
}

TEST(LineChart, IsOneElementThatNeedsNothingElse) {
  LineChart chart{.title = "Live memory", .x_label = "time, s", .y_label = "memory, MiB"};
  chart.series.push_back({"standard", {0, 1, 2}, {1, 3, 2}, true});
  chart.marks.push_back({1, "backward"});
  const std::string svg = to_svg(chart);
  EXPECT_EQ(svg.rfind("<svg", 0), 0u);
  EXPECT_EQ(count(svg, "<svg"), 1);
  EXPECT_EQ(count(svg, "</svg>"), 1);
  for (const char* part : {"Live memory", "time, s", "memory, MiB", "standard", "backward"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  for (const char* part : {"<script", "<style", "class=", "href", "url("})
    EXPECT_EQ(svg.find(part), std::string::npos) << part;
}

TEST(LineChart, NamesAreEscaped) {
  LineChart chart{.title = "a < b & \"c\""};
  chart.series.push_back({"<b>", {0, 1}, {0, 1}, false});
  const std::string svg = to_svg(chart);
  EXPECT_NE(svg.find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_EQ(svg.find("<b>"), std::string::npos);
}

TEST(LineChart, AStepLineHoldsEachValueUntilTheNext) {
  LineChart chart;
  chart.series.push_back({"s", {0, 1, 2}, {5, 0, 10}, true});
  EXPECT_TRUE(std::regex_match(first_path(to_svg(chart)), std::regex("M[0-9.,]+(H[0-9.]+V[0-9.]+){2}")));
}

TEST(LineChart, ALongSeriesIsThinnedAndKeepsItsPeaks) {
  LineChart all, one;
  std::vector<double> x, y;
  for (int i = 0; i < 200'000; ++i) {
    x.push_back(i);
    y.push_back(i == 123'457 ? 100 : i == 77'777 ? -50 : 10 + std::sin(i * 0.001));
  }
  all.series.push_back({"long", x, y, false});
  const std::string svg = to_svg(all);
  EXPECT_LT(svg.size(), 60'000u);
  const auto drawn = heights(first_path(svg));
  // The same three values drawn alone say where they lie.
  one.series.push_back({"short", {0, 1, 2}, {100, -50, y.front()}, false});
  const auto alone = heights(first_path(to_svg(one)));
  EXPECT_EQ(*std::min_element(drawn.begin(), drawn.end()), alone[0]);
  EXPECT_EQ(*std::max_element(drawn.begin(), drawn.end()), alone[1]);
  EXPECT_EQ(drawn.front(), alone[2]);
}

TEST(LineChart, NotANumberLeavesAGap) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  LineChart chart;
  chart.series.push_back({"s", {0, 1, 2, 3, 4}, {1, 2, nan, 2, 1}, false});
  const std::string svg = to_svg(chart);
  EXPECT_EQ(count(svg, "<path"), 2);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(LineChart, WithoutDataItSaysSo) {
  EXPECT_NE(to_svg(LineChart{}).find("no data"), std::string::npos);
  LineChart empty;
  empty.series.push_back({"empty", {}, {}, true});
  EXPECT_NE(to_svg(empty).find("no data"), std::string::npos);
}

TEST(LineChart, ASinglePointIsDrawn) {
  LineChart chart;
  chart.series.push_back({"s", {3}, {7}, false});
  const std::string svg = to_svg(chart);
  EXPECT_EQ(count(svg, "<circle"), 1);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(LineChart, AnAxisOfWholeNumbersHasNoFractions) {
  LineChart epochs, seconds;
  epochs.series.push_back({"s", {1, 2, 3}, {10, 20, 30}, false});
  seconds.series.push_back({"s", {1, 2, 2.5}, {10, 20, 30}, false});
  EXPECT_EQ(to_svg(epochs).find(">1.4<"), std::string::npos);
  EXPECT_NE(to_svg(seconds).find(">1.4<"), std::string::npos);
}

TEST(LineChart, NamesOfMarksThatLieTogetherStandInDifferentLines) {
  LineChart chart;
  chart.series.push_back({"s", {0, 100}, {0, 1}, false});
  chart.marks = {{50, "backward"}, {51, "backward", 0}, {99.9, "step"}};
  const std::string svg = to_svg(chart);
  const std::regex label("<text x=\"([0-9.]+)\" y=\"([0-9.]+)\"[^>]*>(backward|step)<");
  std::vector<std::string> lines;
  for (std::sregex_iterator i(svg.begin(), svg.end(), label), end; i != end; ++i) {
    lines.push_back((*i)[2]);
    EXPECT_LT(std::stod((*i)[1]), chart.width - 20) << (*i)[3];
  }
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_NE(lines[0], lines[1]);
  EXPECT_EQ(lines[0], lines[2]);
}

TEST(LineChart, EverySeriesHasItsOwnColour) {
  LineChart chart;
  for (int i = 0; i < 4; ++i) chart.series.push_back({"s" + std::to_string(i), {0, 1}, {0, 1.0 * i}, false});
  const std::string svg = to_svg(chart);
  for (int i = 0; i < 4; ++i) EXPECT_GE(count(svg, series_color(i)), 2) << i;  // the curve and its legend
}

TEST(LineChart, XAndYOfDifferentLengthAreRefusedByName) {
  LineChart chart;
  chart.series.push_back({"lopsided", {0, 1}, {0}, false});
  try {
    to_svg(chart);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("'lopsided' needs as many y as x, got 2 x and 1 y"),
              std::string::npos);
  }
}

TEST(LineChart, WhatWasNotMeasuredIsDashedInTheColourOfItsSeries) {
  LineChart chart;
  chart.series.push_back({"measured", {0, 1}, {1, 2}});
  chart.series.push_back({"", {1, 2}, {2, 4}, false, true, 0});
  const std::string svg = to_svg(chart);
  EXPECT_EQ(count(svg, "stroke-dasharray=\"6 4\""), 1);
  EXPECT_EQ(count(svg, "stroke=\"" + series_color(1) + "\""), 0);
  EXPECT_EQ(count(svg, "<circle"), 2) << "points of what was measured alone";
}

TEST(LineChart, ALongLegendTakesMoreLinesAndALongNameIsShortened) {
  LineChart chart{.title = "t", .width = 400};
  for (int i = 0; i < 4; ++i)
    chart.series.push_back({std::string(30, static_cast<char>('a' + i)), {0, 1}, {0, 1}});
  chart.series.push_back({std::string(500, 'x'), {0, 1}, {0, 1}});
  const std::string svg = to_svg(chart);
  const auto x = numbers(svg, "<text x=\"([0-9.]+)\"[^>]*>(?:[abcd]{30}|x+\u2026)<");
  EXPECT_EQ(x.size(), 5u);
  EXPECT_EQ(std::count(x.begin(), x.end(), x[0]), 5);  // each line has room for one
  EXPECT_EQ(count(svg, std::string(100, 'x') + "<"), 0);
}

TEST(LineChart, ReadersWhoSeeNoCurveHearItsValues) {
  LineChart chart{.title = "Loss", .x_label = "step", .y_label = "loss"};
  chart.series.push_back({"run", {1, 2, 3}, {4, 0.5, 2}});
  const std::string svg = to_svg(chart);
  EXPECT_NE(svg.find("<title>Loss</title>"), std::string::npos);
  EXPECT_NE(svg.find("<desc>loss over step. run: from 4 to 2, lowest 0.5, highest 4.</desc>"),
            std::string::npos);
}

TEST(DarkChartStyle, HasARuleForEveryColourOfACurve) {
  const std::string css = dark_chart_style();
  for (size_t i = 0; i < kSeriesColors; ++i) {
    EXPECT_NE(css.find("svg [stroke=\"" + series_color(i) + "\"]{stroke:" + dark_series_color(i) + "}"),
              std::string::npos);
    EXPECT_NE(series_color(i), dark_series_color(i));
  }
}

TEST(HeatMap, EachCellHasItsShareAsColourTextAndTooltip) {
  HeatMap map{.row_label = "truth", .column_label = "prediction", .names = {"a", "<b>"}};
  map.values = {0.75, 0.25, std::nan(""), std::nan("")};
  const std::string svg = to_svg(map);
  EXPECT_EQ(count(svg, "<title>truth a, prediction &lt;b&gt;: 25.00 %</title>"), 1);
  EXPECT_EQ(count(svg, ">25</text>"), 1);
  EXPECT_EQ(count(svg, "fill-opacity=\"0.500\"/><text"), 1);  // the root of 0.25
  EXPECT_EQ(count(svg, "truth &lt;b&gt;, "), 0) << "a row without data";
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(HeatMap, ManyNamesAreSmallAndTheirCellsAreFewElements) {
  HeatMap map;
  for (int i = 0; i < 150; ++i)
    map.names.push_back("a class with a very long name, number " + std::to_string(i));
  map.values.assign(150 * 150, 1.0 / 150);
  const std::string svg = to_svg(map);
  EXPECT_EQ(count(svg, "<path"), 1);
  EXPECT_LT(svg.size(), 1'000'000u);
  EXPECT_LT(width_of(map), 1500);
  EXPECT_EQ(count(svg, "<title>a class with a very long name, number 149</title>"), 2);  // beside and above
  EXPECT_EQ(count(svg, ">a class with a very long name, number 149</text>"), 0);
}

TEST(HeatMap, ValuesThatAreNoSquareAreRefused) {
  EXPECT_THROW(to_svg(HeatMap{.names = {"a", "b"}, .values = {1, 2, 3}}), std::invalid_argument);
}

/// Height of every bar, in pixels.
std::vector<double> bars(const std::string& svg) {
  return numbers(svg, "<rect x=[^>]*height=\"([0-9.]+)\" fill=\"#");
}

TEST(BarChart, HeightsAreProportionalAndEverythingIsNamed) {
  BarChart chart{.title = "Time <of> a step", .y_label = "ratio"};
  chart.groups.push_back({"40 layers", {{"naive", 1, "1.00"}, {"fused", 0.5, "0.50", 1}}});
  chart.groups.push_back({"100 layers", {{"naive", 2, "2.00"}}});
  const std::string svg = to_svg(chart);
  const auto heights = bars(svg);
  ASSERT_EQ(heights.size(), 3u);
  EXPECT_NEAR(heights[0], 2 * heights[1], testing::kBarPixels);
  EXPECT_NEAR(heights[2], 2 * heights[0], testing::kBarPixels);
  for (const char* part : {"Time &lt;of&gt; a step", "ratio", "40 layers", "100 layers", "fused", "0.50"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  EXPECT_EQ(count(svg, series_color(1)), 1);
}

TEST(BarChart, AMissingValueHasALabelAndNoBarAndNegativeOnesHangDown) {
  BarChart chart;
  chart.groups.push_back({"", {{"a", std::nan(""), "did not fit"}, {"b", -3, "-3"}, {"c", 3, "3"}}});
  const std::string svg = to_svg(chart);
  const auto heights = bars(svg);
  ASSERT_EQ(heights.size(), 2u);
  EXPECT_NEAR(heights[0], heights[1], testing::kBarPixels);
  EXPECT_NE(svg.find("did not fit"), std::string::npos);
  EXPECT_NE(to_svg(BarChart{}).find("no data"), std::string::npos);
}

}  // namespace
}  // namespace palimpsest::io
