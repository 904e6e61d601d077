#include "palimpsest/data/class_uniform.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/random.h"
#include "palimpsest/data/common/threads.h"
#include "palimpsest/io/safetensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace palimpsest::data {
namespace {

constexpr const char* kFormat = "class_presence 1";

template <class T>
void shuffle_with(std::vector<T>& values, Random& random) {
  for (int64_t i = static_cast<int64_t>(values.size()) - 1; i > 0; --i)
    std::swap(values[i], values[random.below(i + 1)]);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += name + "\n";
  return text;
}

std::map<std::string, std::string> metadata_of(const Dataset& dataset) {
  return {{"format", kFormat},
          {"data", dataset.identity()},
          {"images", std::to_string(dataset.size())},
          {"ignore_id", std::to_string(dataset.ignore_id())},
          {"class_names", joined(dataset.class_names())}};
}

class ClassUniform : public Sampler {
 public:
  explicit ClassUniform(const ClassPresence& presence) : size_(presence.images()) {
    for (const ClassPresence::Entry& entry : presence.entries()) {
      if (entry.class_id >= static_cast<int64_t>(images_of_.size())) images_of_.resize(entry.class_id + 1);
      images_of_[entry.class_id].push_back(entry.image);
    }
    for (std::size_t id = 0; id < images_of_.size(); ++id)
      if (!images_of_[id].empty()) classes_.push_back(static_cast<int64_t>(id));
    if (classes_.empty())
      throw Error(ErrorKind::kData,
                  "the sampler class_uniform needs images that have a class; all pixels of all " +
                      std::to_string(size_) + " labels are ignored");
  }

  std::vector<Draw> epoch(uint64_t seed, int64_t epoch) const override {
    constexpr uint64_t kStream = ~uint64_t{1};  // no example has this index
    Random random = Random::stream(seed, static_cast<uint64_t>(epoch), kStream);
    std::vector<int64_t> classes = classes_;
    shuffle_with(classes, random);  // the first ones are drawn once more than the others
    std::vector<Draw> draws;
    const auto count = static_cast<int64_t>(classes.size());
    for (int64_t k = 0; k < count; ++k) {
      std::vector<int64_t> images;
      for (int64_t left = size_ / count + (k < size_ % count); left > 0; --left) {
        if (images.empty()) {
          images = images_of_[classes[k]];
          shuffle_with(images, random);
        }
        draws.push_back({images.back(), classes[k]});
        images.pop_back();
      }
    }
    shuffle_with(draws, random);
    return draws;
  }

  std::string name() const override { return "class_uniform"; }

 private:
  int64_t size_;
  std::vector<std::vector<int64_t>> images_of_;  // by class
  std::vector<int64_t> classes_;                 // those that occur
};

}  // namespace

ClassPresence ClassPresence::build(const Dataset& dataset, int64_t threads,
                                   const std::function<void(int64_t)>& progress,
                                   std::vector<std::string>* bad) {
  const int64_t size = dataset.size();
  std::vector<std::vector<Entry>> found(size);
  std::vector<std::string> errors(bad ? size : 0);
  std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  int64_t next = 0, done = 0, failed_at = size, at_work = std::max<int64_t>(1, threads);
  std::exception_ptr failure;
  const auto work = [&] {
    std::unique_lock lock(mutex);
    while (next < failed_at) {
      const int64_t index = next++;
      lock.unlock();
      std::exception_ptr error;
      try {
        const std::vector<int64_t> pixels = dataset.class_pixels(index);
        if (pixels.empty())
          throw Error(ErrorKind::kUsage,
                      "the sampler class_uniform needs a data set that knows the classes of its images");
        for (std::size_t id = 0; id < pixels.size(); ++id)
          if (pixels[id] > 0) found[index].push_back({index, static_cast<int64_t>(id), pixels[id]});
      } catch (const Error& of_label) {
        if (bad && of_label.kind() == ErrorKind::kData)
          errors[index] = of_label.what();
        else
          error = std::current_exception();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      ++done;
      if (!error || index >= failed_at) continue;
      failed_at = index;  // those before it are at work or done: the first error, for any number of threads
      failure = error;
    }
    --at_work;
    changed.notify_one();
  };
  {
    const auto stop = [&] {
      const std::lock_guard lock(mutex);
      next = failed_at;
    };
    const auto workers = start_threads(at_work, "the index of classes", "--workers", work, stop);
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, std::chrono::milliseconds(250), [&] { return at_work == 0; })) {
      const int64_t now = done;
      lock.unlock();
      if (progress) progress(now);
      lock.lock();
    }
  }
  if (failure) std::rethrow_exception(failure);
  if (progress) progress(size);
  for (std::string& text : errors)
    if (!text.empty()) bad->push_back(std::move(text));
  ClassPresence presence;
  presence.images_ = size;
  for (const auto& entries : found)
    presence.entries_.insert(presence.entries_.end(), entries.begin(), entries.end());
  return presence;
}

ClassPresence ClassPresence::read(const std::filesystem::path& path, const Dataset& dataset) {
  const auto refuse = [&](const std::string& reason) {
    throw Error(ErrorKind::kData, "cannot use the class presence of '" + path.string() + "': " + reason);
  };
  io::Safetensors file;
  try {
    file = io::read_safetensors(path);
  } catch (const Error& error) {
    refuse(error.what());
  }
  const int64_t images = dataset.size(), classes = static_cast<int64_t>(dataset.class_names().size());
  const auto wanted = metadata_of(dataset);
  if (file.metadata != wanted) {
    auto other = file.metadata;
    std::string& ignore_id = other["ignore_id"];
    const std::string stored = std::exchange(ignore_id, wanted.at("ignore_id"));
    if (other == wanted && !stored.empty())
      refuse("it was made with the ignore id " + stored + ", the data set has " + ignore_id);
    refuse("it is of other data or of another program");
  }
  const at::Tensor* image = file.find("image");
  const at::Tensor* class_id = file.find("class");
  const at::Tensor* pixels = file.find("pixels");
  const auto is_list = [&](const at::Tensor* tensor, at::ScalarType type) {
    return tensor && tensor->dim() == 1 && tensor->scalar_type() == type && tensor->numel() == image->numel();
  };
  if (!is_list(image, at::kInt) || !is_list(class_id, at::kInt) || !is_list(pixels, at::kLong))
    refuse("it has no lists of images, classes and pixels");
  ClassPresence presence;
  presence.images_ = images;
  Entry before{-1, -1, 0};
  for (int64_t i = 0; i < image->numel(); ++i) {
    const Entry entry{image->const_data_ptr<int32_t>()[i], class_id->const_data_ptr<int32_t>()[i],
                      pixels->const_data_ptr<int64_t>()[i]};
    const bool follows = std::pair(before.image, before.class_id) < std::pair(entry.image, entry.class_id);
    if (!follows || entry.image >= images || entry.class_id < 0 || entry.class_id >= classes ||
        entry.pixels < 1)
      refuse("entry " + std::to_string(i) + " is out of range or out of order");
    presence.entries_.push_back(entry);
    before = entry;
  }
  return presence;
}

void ClassPresence::write(const std::filesystem::path& path, const Dataset& dataset) const {
  const auto count = static_cast<int64_t>(entries_.size());
  const at::Tensor image = at::empty({count}, at::kInt), class_id = at::empty({count}, at::kInt),
                   pixels = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    image.mutable_data_ptr<int32_t>()[i] = static_cast<int32_t>(entries_[i].image);
    class_id.mutable_data_ptr<int32_t>()[i] = static_cast<int32_t>(entries_[i].class_id);
    pixels.mutable_data_ptr<int64_t>()[i] = entries_[i].pixels;
  }
  io::Safetensors file;
  file.tensors = {{"image", image}, {"class", class_id}, {"pixels", pixels}};
  file.metadata = metadata_of(dataset);
  io::write_safetensors(path, file);
}

std::shared_ptr<const Sampler> class_uniform_sampler(const ClassPresence& presence) {
  return std::make_shared<ClassUniform>(presence);
}

}  // namespace palimpsest::data
