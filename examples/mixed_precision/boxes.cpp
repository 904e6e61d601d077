#include "examples/mixed_precision/boxes.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace mixed_precision {
namespace {

// SSD's "variances": they scale offsets of centres and of sides to about the same size.
constexpr double kOfCentre = 0.1, kOfSide = 0.2;

constexpr double kForced = 2;  // above any overlap: no other object takes the box

constexpr size_t kCandidates = 100;  // of a kind, before suppression, whose time grows with their square

std::array<double, 4> encode(const Box& box, const Box& from) {
  const double width = from.x1 - from.x0, height = from.y1 - from.y0;
  return {(box.x0 + box.x1 - from.x0 - from.x1) / 2 / width / kOfCentre,
          (box.y0 + box.y1 - from.y0 - from.y1) / 2 / height / kOfCentre,
          std::log((box.x1 - box.x0) / width) / kOfSide, std::log((box.y1 - box.y0) / height) / kOfSide};
}

template <class Offsets>
Box decode(const Offsets& offsets, const Box& from) {
  const double width = from.x1 - from.x0, height = from.y1 - from.y0;
  const double x = (from.x0 + from.x1) / 2 + offsets[0] * kOfCentre * width,
               y = (from.y0 + from.y1) / 2 + offsets[1] * kOfCentre * height;
  const double half_width = width * std::exp(offsets[2] * kOfSide) / 2,
               half_height = height * std::exp(offsets[3] * kOfSide) / 2;
  return {x - half_width, y - half_height, x + half_width, y + half_height};
}

/// Returns the average precision of the detections of one kind: (score, right), in any order.
double average_precision(std::vector<std::pair<double, bool>> found, int64_t objects) {
  std::ranges::sort(found, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<double> precision;
  int64_t right = 0, all = 0;
  for (const auto& [score, is_right] : found) {
    ++all;
    if (is_right) precision.push_back(static_cast<double>(++right) / static_cast<double>(all));
  }
  // At each recall the best precision of it and of any higher one.
  double best = 0, sum = 0;
  for (size_t i = precision.size(); i-- > 0;) sum += best = std::max(best, precision[i]);
  return sum / static_cast<double>(objects);
}

}  // namespace

double overlap(const Box& a, const Box& b) {
  const double width = std::min(a.x1, b.x1) - std::max(a.x0, b.x0),
               height = std::min(a.y1, b.y1) - std::max(a.y0, b.y0);
  if (width <= 0 || height <= 0) return 0;
  const auto area = [](const Box& box) { return (box.x1 - box.x0) * (box.y1 - box.y0); };
  return width * height / (area(a) + area(b) - width * height);
}

std::vector<Box> default_boxes(int64_t image_side, int64_t stride, const std::vector<double>& sides) {
  std::vector<Box> boxes;
  for (int64_t row = 0; row < image_side / stride; ++row)
    for (int64_t column = 0; column < image_side / stride; ++column)
      for (const double side : sides) {
        const double x = (static_cast<double>(column) + 0.5) * static_cast<double>(stride),
                     y = (static_cast<double>(row) + 0.5) * static_cast<double>(stride);
        boxes.push_back({x - side / 2, y - side / 2, x + side / 2, y + side / 2});
      }
  return boxes;
}

Targets match(const std::vector<std::vector<Object>>& objects, const std::vector<Box>& boxes) {
  const auto n = static_cast<int64_t>(objects.size()), count = static_cast<int64_t>(boxes.size());
  Targets targets{torch::zeros({n, count}, torch::kLong), torch::zeros({n, count, 4})};
  auto kinds = targets.kinds.accessor<int64_t, 2>();
  auto offsets = targets.offsets.accessor<float, 3>();
  for (int64_t i = 0; i < n; ++i) {
    std::vector<double> most(boxes.size(), 0);
    const auto assign = [&](size_t box, const Object& object, double by) {
      most[box] = by;
      const auto k = static_cast<int64_t>(box);
      kinds[i][k] = object.kind;
      const auto wanted = encode(object.box, boxes[box]);
      for (int64_t j = 0; j < 4; ++j) offsets[i][k][j] = static_cast<float>(wanted[static_cast<size_t>(j)]);
    };
    for (const auto& object : objects[static_cast<size_t>(i)]) {
      size_t best = boxes.size();
      double highest = -1;
      for (size_t k = 0; k < boxes.size(); ++k) {
        if (most[k] == kForced) continue;
        const double by = overlap(boxes[k], object.box);
        if (by >= 0.5 && by > most[k]) assign(k, object, by);
        if (by > highest) {
          highest = by;
          best = k;
        }
      }
      if (best < boxes.size()) assign(best, object, kForced);
    }
  }
  return targets;
}

std::vector<Object> detect(const torch::Tensor& probabilities, const torch::Tensor& offsets,
                           const std::vector<Box>& boxes) {
  const auto p = probabilities.accessor<float, 2>(), o = offsets.accessor<float, 2>();
  std::vector<Object> detections;
  for (int64_t kind = 1; kind < probabilities.size(1); ++kind) {
    std::vector<Object> candidates, kept;
    for (size_t k = 0; k < boxes.size(); ++k) {
      const auto row = static_cast<int64_t>(k);
      if (p[row][kind] >= 0.05) candidates.push_back({kind, decode(o[row], boxes[k]), p[row][kind]});
    }
    std::ranges::stable_sort(candidates, [](const auto& a, const auto& b) { return a.score > b.score; });
    if (candidates.size() > kCandidates) candidates.resize(kCandidates);
    for (const auto& candidate : candidates)
      if (std::ranges::none_of(
              kept, [&](const Object& better) { return overlap(better.box, candidate.box) > 0.45; }))
        kept.push_back(candidate);
    detections.insert(detections.end(), kept.begin(), kept.end());
  }
  return detections;
}

double mean_average_precision(const std::vector<std::vector<Object>>& detections,
                              const std::vector<std::vector<Object>>& objects, int64_t kinds) {
  double sum = 0;
  for (int64_t kind = 1; kind <= kinds; ++kind) {
    std::vector<std::pair<double, bool>> found;
    int64_t wanted = 0;
    for (size_t i = 0; i < objects.size(); ++i) {
      std::vector<const Object*> missing;
      for (const auto& object : objects[i])
        if (object.kind == kind) missing.push_back(&object);
      wanted += static_cast<int64_t>(missing.size());
      for (const auto& detection : detections[i]) {  // of a kind: the best first
        if (detection.kind != kind) continue;
        const auto hit = std::ranges::find_if(
            missing, [&](const Object* object) { return overlap(object->box, detection.box) >= 0.5; });
        found.emplace_back(detection.score, hit != missing.end());
        if (hit != missing.end()) missing.erase(hit);
      }
    }
    sum += wanted > 0 ? average_precision(std::move(found), wanted) : 0;
  }
  return sum / static_cast<double>(kinds);
}

}  // namespace mixed_precision
