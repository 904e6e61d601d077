// fuzz_program PARSER [INPUTS [SEED]]: gives a parser mutated files, and ends with 1 at the first that it
// must not end so:
//   an exception other than the parser's own error (the program's exit code would be 1), or a crash under a
//   sanitizer; more than 1 s of processor time, or 60 s without an answer; more memory at a time than
//   Target::most_bytes allows (only under AddressSanitizer, which reports allocations).
// The bad input is then in fuzz-PARSER.bin. Prints one JSON object. The same arguments give the same inputs.
// PARSER is safetensors, settings, json (a run's log), png (behind correct checksums), jpeg or
// tar (behind correct checksums).
#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/base/random.h"
#include "palimpsest/cli/demo.h"
#include "palimpsest/cli/options.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/io/image.h"
#include "palimpsest/io/image/codecs.h"
#include "palimpsest/io/safetensors.h"
#include "palimpsest/io/tar.h"
#include "palimpsest/train/report/run_log.h"
#include "tests/fuzz/mutate.h"
#include "tests/io/jpeg_writer.h"
#include "tests/support/tar.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
// Of the sanitizer's runtime; g++ brings no header that declares them.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, std::size_t),
                                                         void (*on_free)(const volatile void*));
extern "C" std::size_t __sanitizer_get_allocated_size(const volatile void* block);
#endif

namespace palimpsest::fuzz {
namespace {

constexpr double kMostSeconds = 1, kMostWait = 60;

// Bytes allocated and not yet freed, on all threads, and their peak since the input began.
std::atomic<int64_t> live{0}, peak{0};

#ifdef __SANITIZE_ADDRESS__
constexpr bool kMeasuresMemory = true;
void on_malloc(const volatile void*, std::size_t bytes) {
  const int64_t now = live.fetch_add(static_cast<int64_t>(bytes)) + static_cast<int64_t>(bytes);
  int64_t before = peak.load();
  while (now > before && !peak.compare_exchange_weak(before, now)) {
  }
}
void on_free(const volatile void* block) {
  if (block != nullptr)
    live.fetch_sub(static_cast<int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(block))));
}
void watch_memory() {
  __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
}
#else
constexpr bool kMeasuresMemory = false;
void watch_memory() {}
#endif

/// A file in memory, with a path, so that a parser that takes a path reads it.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (descriptor_ < 0) throw std::runtime_error("memfd_create failed");
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }
  void put(const std::string& bytes) const {
    if (ftruncate(descriptor_, 0) != 0 ||
        pwrite(descriptor_, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
      throw std::runtime_error("the memory file cannot be written");
  }

 private:
  int descriptor_;
};

struct Target {
  std::vector<std::string> corpus, words;
  std::function<void(const std::string&)> parse;
  /// The most bytes at a time for an input of that size.
  std::function<int64_t(int64_t)> most_bytes;
  std::function<std::string(const std::string&, Random&)> mutated = nullptr;  ///< by default mutate()
};

// Both parsers of safetensors and TOML build trees, whose nodes take some hundred bytes; the buffers of a
// thread, the message of an error and libtorch's own allocations are in the constant.
int64_t tree_bytes(int64_t input) {
  return (int64_t{1} << 20) + 400 * input;
}

/// Returns the marks of JSON, then `more`.
std::vector<std::string> json_words(const std::vector<std::string>& more) {
  std::vector<std::string> words{"{", "}", "[", "]", ",", ":", "\""};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string safetensors_bytes(const io::Safetensors& contents) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("fuzz-{}.safetensors", getpid());
  io::write_safetensors(path, contents);
  std::string bytes = io::read_file(path);
  std::filesystem::remove(path);
  return bytes;
}

Target safetensors() {
  auto file = std::make_shared<MemoryFile>();
  Target target;
  io::Safetensors all;
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
                          at::kByte, at::kChar, at::kBool})
    all.tensors.emplace_back(fmt::format("layer1.{}.weight", static_cast<int>(type)),
                             at::zeros({2, 3}, type));
  all.metadata = {{"format", "pt"}, {"config", "[model]\nname = \"resnet18\"\n"}};
  target.corpus = {safetensors_bytes({}), safetensors_bytes(all),
                   safetensors_bytes({{{"fc.weight", at::zeros({4, 8})}, {"fc.bias", at::zeros({4})}}, {}})};
  target.words =
      json_words({"\\u0000", "\\u001b[2J", "-1", "1e999", "0.5", "null", "true", "\"dtype\"", "\"shape\"",
                  "\"F32\"", "\"U8\"", "[0,0]", "4294967296", "9223372036854775807", "18446744073709551615",
                  "\"__metadata__\"", "{\"a\":", "[[[[", "\"data_offsets\""});
  target.parse = [file](const std::string& bytes) {
    file->put(bytes);
    io::read_safetensors_header(file->path());
    io::read_safetensors(file->path());
  };
  target.most_bytes = tree_bytes;
  return target;
}

Target settings() {
  Target target;
  cli::Options options;
  options.run.command = cli::Command::kTrain;
  target.corpus = {
      cli::to_toml(options), std::string(cli::demo_config()),
      "# a recipe\n[model]\nname = 'resnet18'\nclass_names = [\"a\", 'b', \"\"\"c\nd\"\"\", '''e''']\n"
      "[data]\nkind = \"image_folder\"\nmean = [0.5, 1, 1e-3]\nroot = \"\\u00e9\\\\\"\n[optimizer]\nlr = "
      "0x1F\n"
      "nesterov = true\n[schedule]\nkind = \"cosine\"\nwarmup_epochs = 1_000\n"};
  target.words = {"[",           "]",
                  "[[",          "]]",
                  "{",           "}",
                  "=",           ".",
                  ",",           "\n",
                  "\"",          "\"\"\"",
                  "'",           "'''",
                  "#",           "\\u0000",
                  "\\U0010FFFF", "a.a.a.a.",
                  "[[[[[[[[",    "{a={a=",
                  "inf",         "nan",
                  "-0",          "0xFFFFFFFFFFFFFFFFF",
                  "1e999",       "1979-05-27T07:32:00Z",
                  "true",        "[model]",
                  "[output]",    "folder",
                  "name",        "lr",
                  "\x1b[31m",    "\xFF"};
  target.parse = [](const std::string& text) {
    cli::Options read;
    read.run.command = cli::Command::kPredict;
    cli::read_stored_toml(read, text, "stored");
    const cli::Options before = read;
    cli::complete_strategies(read);
    cli::check_combinations(read, {&before});
    cli::to_toml(read);
  };
  target.most_bytes = [](int64_t input) { return (int64_t{1} << 21) + 400 * input; };
  return target;
}

Target json() {
  // The log is written again beside itself: a folder in memory is fast.
  const std::filesystem::path folder =
      std::filesystem::path("/dev/shm") / fmt::format("palimpsest-fuzz-{}", getpid());
  std::filesystem::create_directories(folder);
  Target target;
  target.corpus = {
      "{\"type\":\"step\",\"step\":1,\"epoch\":0,\"loss\":1.5,\"lr\":0.01,\"eta_seconds\":null}\n"
      "{\"type\":\"evaluation\",\"step\":2,\"epoch\":1,\"images\":4,\"loss\":1.25,\"class_iou\":[0.5,null]}"
      "\n",
      "{\"type\":\"exponents\",\"step\":3,\"weights\":{\"values\":7,\"lowest\":-24,\"bars\":[0.1,0.9]}}\n",
      "\n\n{}\n[]\n"};
  target.words = json_words({"\n", "null", "true", "-1", "1e999", "18446744073709551615",
                             "\"step\":", "\"type\":", "\"evaluation\"", "\\ud800", "\\u0000", "[[[[[[[[",
                             "{\"a\":{\"a\":"});
  target.parse = [folder](const std::string& text) {
    {
      const int file = ::open((folder / "log.jsonl").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
      const ssize_t written = ::write(file, text.data(), text.size());
      ::close(file);
      if (written != static_cast<ssize_t>(text.size())) throw std::runtime_error("the log cannot be written");
    }
    const train::RunLog log(folder / "log.jsonl", 1000);
  };
  target.most_bytes = tree_bytes;
  return target;
}

/// The picture, its rows, and what the decoder keeps. `per_byte` is the most pixels that a byte of the file
/// can hold.
std::function<int64_t(int64_t)> picture_bytes(int64_t per_byte, int64_t bytes_per_pixel) {
  return [=](int64_t input) {
    return (int64_t{4} << 20) +
           bytes_per_pixel * std::min(static_cast<int64_t>(io::codecs::kMaxPixels), per_byte * (input + 64));
  };
}

Target png() {
  Target target;
  for (const auto& shape : {std::vector<int64_t>{1, 1, 3}, {9, 17, 3}, {33, 5}})
    target.corpus.push_back(
        io::encode_png(at::arange(c10::multiply_integers(shape)).reshape(shape).to(at::kByte)));
  std::vector<PngChunk> palette = png_chunks(target.corpus[2]);
  palette[0].body[9] = 3;  // the grey picture as indices
  palette.insert(palette.begin() + 1, {"PLTE", std::string(768, 'p')});
  palette.insert(palette.begin() + 2, {"tRNS", std::string(16, 't')});
  target.corpus.push_back(png_file(palette));
  target.parse = [](const std::string& bytes) {
    for (const bool label : {false, true}) {
      try {
        label ? io::codecs::decode_png_labels(bytes, "fuzz") : io::codecs::decode_png(bytes, "fuzz");
      } catch (const Error&) {
        if (label) throw;
      }
    }
  };
  target.mutated = [corpus = target.corpus](const std::string& bytes, Random& random) {
    return mutate_png(bytes, corpus, random);
  };
  target.most_bytes =
      picture_bytes(8 * 1032, 4);  // one bit per pixel, deflated; three bytes and libpng's rows
  return target;
}

Target jpeg() {
  Target target;
  for (const int components : {1, 3, 4})
    for (const bool progressive : {false, true})
      target.corpus.push_back(testing::jpeg(25, 40, {.components = components, .progressive = progressive}));
  target.corpus.push_back(testing::jpeg(25, 40, {.arithmetic = true}));
  target.corpus.push_back(testing::jpeg(25, 40, {.restart_rows = 1}));
  target.corpus.push_back(testing::progressive_jpeg(16, 16, 9));
  const std::string plain = testing::jpeg(25, 40, {});
  for (const bool little_endian : {false, true})
    target.corpus.push_back(
        plain.substr(0, 2) +
        testing::exif_segment(little_endian, {{testing::kOrientationTag, testing::kShort, 1, 6}}) +
        plain.substr(2));
  for (const char* marker : {"\xFF\xD8", "\xFF\xC0", "\xFF\xC1", "\xFF\xC2", "\xFF\xC4", "\xFF\xC9",
                             "\xFF\xCA", "\xFF\xCC", "\xFF\xD0", "\xFF\xD7", "\xFF\xD9", "\xFF\xDA",
                             "\xFF\xDB", "\xFF\xDD", "\xFF\xE0", "\xFF\xE1", "\xFF\xEE"})
    target.words.emplace_back(marker);
  target.parse = [](const std::string& bytes) {
    const io::ImageFile file(bytes, "fuzz");
    const io::ImageSize size = io::reduced_size(file.size(), 3);
    file.decode({3, size.height / 2, size.width / 3, 1, 1});
    file.decode();
  };
  // Three bytes, and six of coefficients of a progressive file; of an arithmetic file, any number of pixels.
  target.most_bytes = [](int64_t) {
    return (int64_t{1} << 30) + 3 * static_cast<int64_t>(io::codecs::kMaxPixels) + (int64_t{4} << 20);
  };
  return target;
}

/// Changes an archive and corrects the checksums of three blocks in four, so that the changes are read.
std::string mutate_tar(const std::string& bytes, const std::vector<std::string>& corpus,
                       const std::vector<std::string>& words, Random& random) {
  std::string changed = mutate(bytes, corpus, words, random);
  for (std::size_t at = 0; at + 512 <= changed.size(); at += 512)
    if (random.below(4) > 0 && changed.compare(at + 257, 5, "ustar") == 0)
      changed.replace(at, 512, testing::with_checksum(changed.substr(at, 512)));
  return changed;
}

Target tar() {
  auto file = std::make_shared<MemoryFile>();
  Target target;
  const std::string name(150, 'n');
  target.corpus = {
      testing::tar({}), testing::tar({{"a.jpg", "xyz"}, {"a.cls", "7"}, {"b/c.png", std::string(600, 'p')}}),
      testing::tar_member("long", name + '\0', 'L') + testing::tar({{"a", "b"}}),
      testing::tar_member("pax", "9 path=a\n10 size=2\n", 'x') + testing::tar({{"a", "bc"}}),
      testing::tar_header("folder", 0, '5') + testing::tar_header("link", 9, '2') + testing::tar({})};
  target.words = {"path=",
                  "size=",
                  "GNU.sparse.major=1",
                  "\n",
                  "20 ",
                  "99999999999999999999",
                  "77777777777",
                  std::string("\x80\0\0\0\0\0\0\0\0\0\0\1", 12),
                  std::string("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 8),
                  std::string(512, '\0'),
                  "L",
                  "K",
                  "x",
                  "g",
                  "S",
                  "7"};
  target.parse = [file](const std::string& bytes) {
    file->put(bytes);
    io::TarReader archive(file->path());
    while (const auto member = archive.next()) (void)archive.read(*member);
  };
  target.mutated = [corpus = target.corpus, words = target.words](const std::string& bytes, Random& random) {
    return mutate_tar(bytes, corpus, words, random);
  };
  // A member, and the texts of the headers before it.
  target.most_bytes = [](int64_t input) { return (int64_t{1} << 20) + 4 * input; };
  return target;
}

Target target_of(const std::string& parser) {
  if (parser == "safetensors") return safetensors();
  if (parser == "settings") return settings();
  if (parser == "json") return json();
  if (parser == "png") return png();
  if (parser == "jpeg") return jpeg();
  if (parser == "tar") return tar();
  throw Error(ErrorKind::kUsage,
              "unknown parser '" + parser + "': safetensors, settings, json, png, jpeg or tar");
}

void keep(const std::string& parser, const std::string& input) {
  const int file =
      ::open(("fuzz-" + parser + ".bin").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0 || ::write(file, input.data(), input.size()) < 0) std::perror("fuzz input");
  if (file >= 0) ::close(file);
}

double thread_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Ends the program if one input takes too long. Counts processor time: on a busy machine, a second passes
/// without any.
class Watchdog {
 public:
  explicit Watchdog(std::string parser) : parser_(std::move(parser)) {
    pthread_getcpuclockid(pthread_self(), &clock_);
    thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  }
  void begin(const std::string& input) {
    input_ = &input;
    started_ = thread_seconds(clock_);
    ++number_;
  }
  double seconds() const { return thread_seconds(clock_) - started_; }

 private:
  void watch(const std::stop_token& stop) {
    int64_t seen = 0;
    auto since = std::chrono::steady_clock::now();
    while (!stop.stop_requested()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      if (number_ != seen) {
        seen = number_;
        since = std::chrono::steady_clock::now();
        continue;
      }
      // The same input for 200 ms at least.
      const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
      if (number_ == 0 || (seconds() < kMostSeconds && waited < kMostWait)) continue;
      keep(parser_, *input_);
      std::cerr << "fuzz " << parser_ << ": input " << number_ << " takes more than 1 s\n";
      std::_Exit(1);
    }
  }

  std::string parser_;
  clockid_t clock_{};
  std::atomic<const std::string*> input_{nullptr};
  std::atomic<double> started_{0};
  std::atomic<int64_t> number_{0};
  std::jthread thread_;
};

int run(const std::string& parser, int64_t inputs, uint64_t seed) {
  watch_memory();
  const Target target = target_of(parser);
  Watchdog watchdog(parser);
  int64_t accepted = 0, refused = 0, worst_bytes = 0;
  double worst_seconds = 0, worst_share = 0;
  const auto begun = std::chrono::steady_clock::now();
  for (int64_t i = -static_cast<int64_t>(target.corpus.size()); i < inputs; ++i) {
    // First the corpus itself, which must be accepted.
    Random random = Random::stream(seed, static_cast<uint64_t>(i + 1000));
    std::string input;
    if (i < 0) {
      input = target.corpus[static_cast<std::size_t>(-i - 1)];
    } else {
      const std::string& example =
          target.corpus[static_cast<std::size_t>(random.below(static_cast<int64_t>(target.corpus.size())))];
      input = target.mutated ? target.mutated(example, random)
                             : mutate(example, target.corpus, target.words, random);
    }
    watchdog.begin(input);
    const int64_t before = live;
    peak = before;
    std::string fault;
    try {
      target.parse(input);
      ++accepted;
    } catch (const Error& error) {
      ++refused;
      if (error.kind() == ErrorKind::kInternal || error.kind() == ErrorKind::kOutput) fault = error.what();
      if (i < 0 && parser != "png")
        fault = fmt::format("an example of the corpus is refused: {}", error.what());
      if (printable(error.what()).size() > 8000) fault = "a message of more than 8000 bytes";
    } catch (const std::exception& error) {
      fault = fmt::format("{}: {}", typeid(error).name(), error.what());
    }
    const double seconds = watchdog.seconds();
    const int64_t bytes = peak - before, most = target.most_bytes(static_cast<int64_t>(input.size()));
    worst_seconds = std::max(worst_seconds, seconds);
    worst_bytes = std::max(worst_bytes, bytes);
    worst_share = std::max(worst_share, static_cast<double>(bytes) / static_cast<double>(most));
    if (fault.empty() && seconds > kMostSeconds) fault = fmt::format("{:.2f} s", seconds);
    if (fault.empty() && bytes > most) fault = fmt::format("{} bytes at a time, allowed are {}", bytes, most);
    if (fault.empty()) continue;
    keep(parser, input);
    std::cerr << "fuzz " << parser << ": input " << i << " of seed " << seed << ": " << printable(fault)
              << std::endl;
    return 1;
  }
  const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  std::cout << fmt::format(
                   "{{\"parser\": \"{}\", \"inputs\": {}, \"seed\": {}, \"accepted\": {}, \"refused\": {}, "
                   "\"sanitized\": {}, \"slowest_seconds\": {:.3f}, \"most_bytes\": {}, \"share_of_bound\": "
                   "{:.3f}, "
                   "\"seconds\": {:.0f}}}",
                   parser, inputs, seed, accepted, refused, kMeasuresMemory, worst_seconds,
                   kMeasuresMemory ? worst_bytes : 0, kMeasuresMemory ? worst_share : 0.0, all)
            << std::endl;
  return 0;
}

}  // namespace
}  // namespace palimpsest::fuzz

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::cerr << "usage: fuzz_program safetensors|settings|json|png|jpeg [INPUTS [SEED]]\n";
    return 2;
  }
  try {
    return palimpsest::fuzz::run(argv[1], argc > 2 ? std::stoll(argv[2]) : 2000,
                                 argc > 3 ? std::stoull(argv[3]) : 1);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
