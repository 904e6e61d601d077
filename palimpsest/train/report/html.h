#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

// The parts that all pages share.
namespace palimpsest::train {

/// Returns a page with a style sheet of its own. `body` is HTML. The page forbids itself to load anything.
std::string html_page(const std::string& title, const std::string& body);

/// Returns "<h2>title</h2>" with the content, or "" if the content is empty.
std::string html_section(const std::string& title, const std::string& content);
/// Puts what may be wider than the page into a box that scrolls, by the keyboard too. `name` is read aloud.
std::string html_scroll_box(const std::string& name, const std::string& content);
/// Puts charts side by side where the page is wide enough.
std::string html_charts(const std::vector<std::string>& svgs);
/// Returns a table of two or more columns. The first column has the names of the rows.
std::string html_table(const char* style_class, const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows);
/// Returns an img element with the PNG of a u8 image, (H, W, 3). `what` is its text for readers who see none.
std::string html_picture(const at::Tensor& rgb, const std::string& what);
/// Returns a little square in the colour of the `run`-th series, as charts have it.
std::string html_swatch(size_t run);
/// Returns a square in any colour, `rgb` of 3 values.
std::string html_swatch(const int* rgb);

}  // namespace palimpsest::train
