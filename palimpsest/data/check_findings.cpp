#include "palimpsest/data/check/findings.h"

#include "palimpsest/data/class_set.h"
#include "palimpsest/data/common/threads.h"
#include "palimpsest/data/layouts/labeled_pixels.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

namespace palimpsest::data::checks {
namespace {

int64_t pixels(const std::array<int64_t, 2>& size) {
  return size[0] * size[1];
}

}  // namespace

void Findings::add_size(const std::array<int64_t, 2>& size) {
  if (pixels(size) == 0) return;
  // Equal numbers of pixels: the narrower one, so that the order of the threads does not matter.
  if (pixels(smallest) == 0 || std::pair(pixels(size), size) < std::pair(pixels(smallest), smallest))
    smallest = size;
  if (std::pair(pixels(size), size) > std::pair(pixels(largest), largest)) largest = size;
}

void Findings::add_class(int64_t id, int64_t count) {
  if (id >= static_cast<int64_t>(classes.size())) classes.resize(id + 1);
  classes[id] += count;
}

void Findings::examine(int64_t position, const at::Tensor& image, const std::string& image_name,
                       at::Tensor label, const std::string& label_name, const layouts::LabelIds* label_ids,
                       const CheckOptions& options) {
  if (image.defined()) add_size({image.size(1), image.size(0)});
  if (!label.defined()) return;
  const auto* values = label.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < label.numel(); ++i) ++ids[values[i]];
  const io::ImageSize label_size{label.size(0), label.size(1)};
  if (image.defined()) {
    const io::ImageSize size{image.size(0), image.size(1)};
    if (size != label_size)
      faults.emplace_back(position, "image '" + image_name + "' has " + layouts::size_text(size) +
                                        " pixels, its label has " + layouts::size_text(label_size) +
                                        layouts::orientation_hint(size, label_size, options.orientation));
  }
  try {
    layouts::map_to_train_ids(label, *label_ids, options.ignore_id.value_or(255), label_name);
  } catch (const Error& error) {
    faults.emplace_back(position, error.what());
  }
}

void Findings::add(const Findings& other) {
  faults.insert(faults.end(), other.faults.begin(), other.faults.end());
  unreadable += other.unreadable;
  add_size(other.smallest);
  add_size(other.largest);
  for (std::size_t id = 0; id < ids.size(); ++id) ids[id] += other.ids[id];
  for (std::size_t id = 0; id < other.classes.size(); ++id)
    add_class(static_cast<int64_t>(id), other.classes[id]);
}

Findings examine_all(int64_t count, const std::string& split, const CheckOptions& options,
                     const std::function<void(int64_t, Findings&)>& examine) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;  // of everything below
  Findings all;
  int64_t done = 0;
  std::exception_ptr failure;
  const auto work = [&] {
    Findings own;
    try {
      for (int64_t i = next++; i < count; i = next++) {
        examine(i, own);
        const std::lock_guard lock(mutex);
        ++done;
        if (options.progress) options.progress(split, done, count);
      }
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    all.add(own);
  };
  {
    const auto others = start_threads(std::max<int64_t>(options.threads, 1) - 1, "data check", "--threads",
                                      work, [&] { next = count; });
    work();
  }
  if (failure) std::rethrow_exception(failure);
  std::stable_sort(all.faults.begin(), all.faults.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return all;
}

void add_findings(SplitCheck& check, const Findings& found) {
  for (const auto& [position, fault] : found.faults) check.faults.push_back(fault);
  check.unreadable = found.unreadable;
  check.smallest = found.smallest;
  check.largest = found.largest;
}

void add_pixels(SplitCheck& check, const Findings& found, const layouts::LabelIds& ids, std::size_t classes) {
  check.class_counts.assign(classes, 0);
  for (int64_t id = 0; id < 256; ++id) {
    const int64_t train_id = ids.train_ids[id];
    if (train_id == ClassSet::kVoid) check.void_pixels += found.ids[id];
    if (train_id >= 0) check.class_counts.at(train_id) += found.ids[id];
    if (train_id == ClassSet::kNoClass && found.ids[id] > 0) check.ids_without_class[id] = found.ids[id];
  }
}

}  // namespace palimpsest::data::checks
