#include "palimpsest/io/image.h"
#include "palimpsest/io/svg.h"
#include "palimpsest/train/report/exponent_chart.h"
#include "palimpsest/train/report/figures.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdint>
#include <utility>

namespace palimpsest::train {
namespace {

std::string base64(const std::string& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](size_t k) {
      return i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u;
    };
    const uint32_t three = byte(0) << 16 | byte(1) << 8 | byte(2);
    for (int k = 0; k < 4; ++k)
      text += i + static_cast<size_t>(k) <= bytes.size() ? kDigits[three >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

std::string picture_element(const at::Tensor& rgb, const std::string& what) {
  return fmt::format("<img alt=\"{}\" src=\"data:image/png;base64,{}\">", io::escape_xml(what),
                     base64(io::encode_png(rgb.contiguous())));
}

/// Maps class ids (H, W) to colours, u8 (H, W, 3); void is black.
at::Tensor paint(const at::Tensor& ids, const at::Tensor& colors) {
  at::Tensor table = at::zeros({256, 3}, at::kByte);
  table.narrow(0, 0, colors.size(0)).copy_(colors);
  return table.index_select(0, ids.to(at::kLong).clamp(0, 255).flatten()).view({ids.size(0), ids.size(1), 3});
}

std::string table_html(const Report& report) {
  std::string html = "<table class=\"figures\"><thead><tr><th></th>";
  for (const auto& name : figure_columns(report)) html += "<th>" + io::escape_xml(name) + "</th>";
  html += "</tr></thead><tbody>\n";
  for (const auto& row : figure_rows(report)) {
    html += "<tr><th>" + io::escape_xml(row.label) + "</th>";
    const auto values = figure_cells(row);
    for (size_t i = 0; i < values.size(); ++i)
      html += fmt::format("<td{}>{}</td>", i > 0 && i % 2 == 0 ? " class=\"ratio\"" : "", values[i]);
    html += "</tr>\n";
  }
  return html + "</tbody></table>\n";
}

/// Returns the class names with their colours and, if known, the IoU of each run.
std::string legend_html(const Report& report) {
  const at::Tensor colors = report.class_colors.to(at::kInt).contiguous();
  std::string html = "<table class=\"classes\"><thead><tr><th>class</th>";
  for (const auto& run : report.runs) html += "<th>" + io::escape_xml(run.name) + ", IoU %</th>";
  html += "</tr></thead><tbody>\n";
  for (size_t c = 0; c < report.class_names.size(); ++c) {
    const int* rgb = colors.data_ptr<int>() + 3 * c;
    html += fmt::format("<tr><th><i style=\"background:rgb({},{},{})\"></i>{}</th>", rgb[0], rgb[1], rgb[2],
                        io::escape_xml(report.class_names[c]));
    for (const auto& run : report.runs) {
      const bool known = !run.evaluations.empty() && c < run.evaluations.back().metrics.class_iou.size();
      html += "<td>" + (known ? number_text(100 * run.evaluations.back().metrics.class_iou[c], 1) : "-") +
              "</td>";
    }
    html += "</tr>\n";
  }
  return html + "<tr><th><i style=\"background:#000\"></i>void (not counted)</th></tr>\n</tbody></table>\n";
}

std::string pictures_html(const Report& report) {
  std::string html = fmt::format("<div class=\"pictures\" style=\"grid-template-columns:repeat({},1fr)\">\n",
                                 2 + report.runs.size());
  html += "<b>image</b><b>truth</b>";
  for (const auto& run : report.runs) html += "<b>" + io::escape_xml(run.name) + "</b>";
  for (const auto& picture : report.pictures) {
    html += '\n';
    html += picture_element(picture.image, picture.name);
    html += picture_element(paint(picture.truth, report.class_colors), picture.name + ", truth");
    for (size_t i = 0; i < picture.predictions.size(); ++i)
      html += picture_element(paint(picture.predictions[i], report.class_colors),
                              picture.name + ", " + report.runs[i].name);
  }
  return html + "\n</div>\n" + legend_html(report);
}

/// Returns the headline in words: how each run compares with the first.
std::string summary_html(const Report& report) {
  std::string html;
  for (size_t i = 1; i < report.runs.size(); ++i) {
    const ReportRun &base = report.runs[0], &run = report.runs[i];
    html += fmt::format(
        "<p class=\"summary\"><b>{}</b> saves <b>{:.0f} %</b> of the bytes that <b>{}</b> saves for "
        "backward, and peaks at <b>{:.0f} %</b> of its memory",
        io::escape_xml(run.name), 100.0 * static_cast<double>(run.kept_bytes) / base.kept_bytes,
        io::escape_xml(base.name), 100.0 * static_cast<double>(run.peak_bytes) / base.peak_bytes);
    if (run.largest_batch > 0 && base.largest_batch > 0)
      html += fmt::format("; in the same memory it fits a batch of <b>{}</b> instead of {}",
                          run.largest_batch, base.largest_batch);
    html += ".</p>\n";
  }
  return html;
}

std::string setup_html(const Report& report) {
  std::string html = "<table class=\"setup\">\n";
  for (const auto& [name, value] : report.setup)
    html += "<tr><th>" + io::escape_xml(name) + "</th><td>" + io::escape_xml(value) + "</td></tr>\n";
  return html + "</table>\n";
}

std::string score_svg(const Report& report) {
  const bool iou = is_segmentation(report);
  io::LineChart chart{
      .title = iou ? "Mean IoU on the validation images" : "Top-1 accuracy on the validation images",
      .x_label = "epoch",
      .y_label = iou ? "mean IoU, %" : "top-1, %"};
  for (const auto& run : report.runs) {
    io::LineChart::Series series{run.name, {}, {}};
    for (const auto& e : run.evaluations) {
      series.x.push_back(static_cast<double>(e.epoch));
      series.y.push_back(100 * score_of(e));
    }
    chart.series.push_back(std::move(series));
  }
  return io::to_svg(chart);
}

std::string exponents_html(const Report& report) {
  std::string html;
  for (const auto& run : report.runs)
    if (run.exponents)
      html += fmt::format("<p>{}, step {}</p>\n", io::escape_xml(run.name), run.exponents->step) +
              to_svg(*run.exponents);
  return html.empty() ? html : "<h2>Gradients by exponent</h2>\n" + html;
}

constexpr const char* kStyle = R"(
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1f2937; background: #fff;
       font: 16px/1.5 Helvetica, Arial, 'Liberation Sans', sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
p { margin: .4rem 0 } .note { color: #6b7280; font-size: .85rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
.figures { width: 100%; margin-top: 1rem } .figures th, .figures td { padding: .45rem .8rem; text-align: right;
  border-bottom: 1px solid #e5e7eb } .figures tbody th { text-align: left; font-weight: normal }
.figures thead th { border-bottom: 2px solid #1f2937 } .figures .ratio { font-weight: bold }
.classes { margin-top: 1rem; font-size: .9rem } .classes th, .classes td { padding: .15rem 1.5rem .15rem 0;
  text-align: right; font-weight: normal } .classes th:first-child { text-align: left }
.classes thead th { color: #6b7280 } .classes i { display: inline-block; width: 1.4em; height: .9em;
  margin-right: .6em; border: 1px solid #9ca3af; vertical-align: -.05em }
.setup { font-size: .9rem } .setup th { text-align: left; font-weight: normal; color: #6b7280;
  padding: .1rem 1.5rem .1rem 0 }
svg { display: block; width: 100%; height: auto; margin: .6rem 0 1.4rem }
.pictures { display: grid; gap: .4rem } .pictures b { font-size: .9rem }
.pictures img { width: 100%; image-rendering: pixelated; display: block }
)";

}  // namespace

std::string to_html(const Report& report) {
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<title>{0}</title>\n<style>{1}</style></head>\n<body>\n"
      "<h1>{0}</h1>\n",
      io::escape_xml(report.title), kStyle);
  html += summary_html(report) + table_html(report);
  html += fmt::format(
      "<p class=\"note\">kept: bytes saved for the backward pass. peak: highest live bytes of a step, "
      "parameters, "
      "gradients, momentum and batch included. MiB = 2<sup>20</sup> bytes, counted by the allocator that "
      "every run "
      "uses. seconds per step: median over the steps of the runs in turn. loss: mean of the last {} training "
      "steps. "
      "ratio: to {}.</p>\n",
      kLossSteps, report.runs.empty() ? "the first" : io::escape_xml(report.runs[0].name));
  html += "<h2>Memory over one step</h2>\n" + memory_svg(report);
  html += "<h2>Training</h2>\n" + loss_svg(report) + score_svg(report);
  html += exponents_html(report);
  if (!report.pictures.empty()) html += "<h2>Pictures</h2>\n" + pictures_html(report);
  if (!report.setup.empty()) html += "<h2>Setup</h2>\n" + setup_html(report);
  return html + "</body></html>\n";
}

}  // namespace palimpsest::train
