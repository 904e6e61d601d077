#include "palimpsest/train/report/pictures.h"

#include "palimpsest/io/svg.h"
#include "palimpsest/train/report/html.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace palimpsest::train {
namespace {

/// The same picture in one or more runs.
struct SharedPicture {
  std::vector<size_t> runs;
  std::vector<const EvaluationPicture*> pictures;  // one per run of `runs`
};

bool is_same(const EvaluationPicture& a, const EvaluationPicture& b) {
  return a.name == b.name && at::equal(a.image, b.image) && at::equal(a.truth, b.truth);
}

std::vector<SharedPicture> shared_pictures(const Report& report) {
  std::vector<SharedPicture> result;
  for (size_t run = 0; run < report.runs.size(); ++run) {
    if (!report.runs[run].details) continue;
    for (const EvaluationPicture& picture : report.runs[run].details->pictures) {
      auto same = std::ranges::find_if(result, [&](const SharedPicture& other) {
        return other.runs.back() != run && is_same(*other.pictures[0], picture);
      });
      if (same == result.end()) same = result.insert(result.end(), SharedPicture());
      same->runs.push_back(run);
      same->pictures.push_back(&picture);
    }
  }
  return result;
}

const EvaluationDetails& details_of(const Report& report, const SharedPicture& shared) {
  return *report.runs[shared.runs[0]].details;
}

std::string pixels_html(const Report& report, const std::vector<SharedPicture>& pictures) {
  std::string html;
  std::vector<size_t> columns;  // the runs of the grid that is open
  for (const SharedPicture& shared : pictures) {
    if (!details_of(report, shared).segmentation) continue;
    if (shared.runs != columns) {
      html += columns.empty() ? "" : "\n</div>\n";
      columns = shared.runs;
      html +=
          fmt::format("<div class=\"pictures\" style=\"grid-template-columns:repeat({},minmax(0,1fr))\">\n",
                      2 + columns.size());
      html += "<b>image</b><b>truth</b>";
      for (const size_t run : columns) html += "<b>" + io::escape_xml(report.runs[run].name) + "</b>";
    }
    const EvaluationPicture& first = *shared.pictures[0];
    const at::Tensor& colors = details_of(report, shared).class_colors;
    html += '\n' + html_picture(first.image, first.name);
    html += html_picture(paint(first.truth, colors), first.name + ", truth");
    for (size_t i = 0; i < shared.runs.size(); ++i)
      html += html_picture(
          paint(shared.pictures[i]->prediction, report.runs[shared.runs[i]].details->class_colors),
          first.name + ", " + report.runs[shared.runs[i]].name);
  }
  return columns.empty() ? "" : html + "\n</div>\n";
}

std::string class_name(const EvaluationDetails& details, const at::Tensor& id) {
  const int64_t index = id.item<int64_t>();
  return index >= 0 && index < static_cast<int64_t>(details.class_names.size())
             ? details.class_names[static_cast<size_t>(index)]
             : fmt::format("class {}", index);
}

std::string labels_html(const Report& report, const std::vector<SharedPicture>& pictures) {
  std::string html;
  for (const SharedPicture& shared : pictures) {
    const EvaluationDetails& details = details_of(report, shared);
    if (details.segmentation) continue;
    const EvaluationPicture& first = *shared.pictures[0];
    html += "<figure>" + html_picture(first.image, first.name) + "<figcaption>truth: <b>" +
            io::escape_xml(class_name(details, first.truth)) + "</b>";
    for (size_t i = 0; i < shared.runs.size(); ++i) {
      const ReportRun& run = report.runs[shared.runs[i]];
      const std::string predicted = class_name(*run.details, shared.pictures[i]->prediction);
      html += "<br>" +
              (report.runs.size() > 1 ? html_swatch(shared.runs[i]) + io::escape_xml(run.name)
                                      : std::string("predicted")) +
              ": " + io::escape_xml(predicted);
    }
    html += "</figcaption></figure>\n";
  }
  return html.empty() ? html : "<div class=\"labelled\">\n" + html + "</div>\n";
}

}  // namespace

at::Tensor paint(const at::Tensor& ids, const at::Tensor& colors) {
  at::Tensor table = at::zeros({256, 3}, at::kByte);
  const int64_t count = std::min<int64_t>(256, colors.size(0));
  table.narrow(0, 0, count).copy_(colors.narrow(0, 0, count));
  return table.index_select(0, ids.to(at::kLong).clamp(0, 255).flatten()).view({ids.size(0), ids.size(1), 3});
}

at::Tensor picture_strip(const EvaluationPicture& picture, const at::Tensor& colors) {
  if (picture.truth.dim() == 0) return picture.image;
  const at::Tensor gap = at::full({picture.image.size(0), 4, 3}, 255, at::kByte);
  return at::cat({picture.image, gap, paint(picture.truth, colors), gap, paint(picture.prediction, colors)},
                 1);
}

std::string pictures_html(const Report& report) {
  const auto pictures = shared_pictures(report);
  return pixels_html(report, pictures) + labels_html(report, pictures);
}

}  // namespace palimpsest::train
