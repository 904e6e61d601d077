#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::io {

/// A file of events for TensorBoard: numbers, pictures and histograms over the steps of a training.
///
///   EventFile events("runs/a", 0);            // runs/a/events.out.tfevents.0000000000.palimpsest
///   events.add_scalars(10, {{"train/loss", 0.71}, {"train/lr", 0.05}});
///
/// Each call appends one record with a single write, so a killed program leaves whole records and at most one
/// that is cut off, which readers skip. The operating system has the record before the call returns.
///
/// A run that continues at another step begins a file of its own. That file starts with the mark of a restart
/// (SessionLog START): TensorBoard then hides what earlier files have of this step and later ones. Names sort
/// by step, which is the order in which TensorBoard reads the files of a folder.
///
/// All calls but the constructor throw Error(kOutput), with the path and the system's reason, if the file
/// cannot be written.
///
/// Sources: the records of TensorFlow (a length, a payload and masked CRC-32C of both, little-endian), and
/// tensorboard/compat/proto/{event,summary}.proto, of which five messages are written here by hand.
class EventFile {
 public:
  EventFile() = default;  ///< writes nothing
  /// Creates the file of the events from `first_step` on in `folder`, which must exist. Removes the event
  /// files of this class in `folder` that begin at this step or later: they belong to a run that was
  /// replaced. Throws Error(kOutput).
  EventFile(const std::filesystem::path& folder, int64_t first_step);
  ~EventFile();
  EventFile(EventFile&& other) noexcept;
  EventFile& operator=(EventFile&& other) noexcept;

  /// Appends numbers as one event. A number that is not finite is written as it is.
  void add_scalars(int64_t step, const std::vector<std::pair<std::string, double>>& tags_and_values);
  /// Appends a picture, the bytes of a PNG file.
  void add_png(int64_t step, const std::string& tag, const std::string& png, int64_t height, int64_t width);
  /// A histogram: counts[i] values lie above upper_limits[i - 1] and up to upper_limits[i].
  struct Histogram {
    double low = 0, high = 0;                  ///< smallest and largest value
    double sum = 0, sum_of_squares = 0;        ///< of all values
    std::vector<double> upper_limits, counts;  ///< same length, limits ascending
  };
  /// Throws std::invalid_argument if limits and counts differ in number.
  void add_histogram(int64_t step, const std::string& tag, const Histogram& histogram);

  const std::filesystem::path& path() const { return path_; }

 private:
  void write_event(int64_t step, const std::string& fields);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Returns whether a file has the name of an event file of this class.
bool is_event_file(const std::filesystem::path& file);

/// Removes the event files of this class in `folder`.
void remove_event_files(const std::filesystem::path& folder, int64_t first_step = 0);

/// Returns the CRC-32C (Castagnoli) of `bytes`, and the form in which TensorFlow's records store it.
uint32_t crc32c(const std::string& bytes);
uint32_t masked_crc32c(const std::string& bytes);

}  // namespace palimpsest::io
