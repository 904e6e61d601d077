#include "palimpsest/train/report/html.h"

#include "palimpsest/io/image.h"
#include "palimpsest/io/svg.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdint>

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

// min-width: 0 and overflow-wrap let a name of any length break instead of widening the page.
constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #1f2937; --faint: #5b6472; --line: #d7dbe0; --paper: #fff;
  --mark: #fef3c7 }
* { box-sizing: border-box }
body { margin: 2rem auto; max-width: 100rem; padding: 0 1rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 Helvetica, Arial, 'Liberation Sans', sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem } h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem }
p, ul { margin: .4rem 0; max-width: 60rem } ul { padding: 0; list-style: none }
.note { color: var(--faint); font-size: .875rem }
a { color: inherit }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th { font-weight: normal; text-align: left } thead th { vertical-align: bottom }
.figures th, .figures td { padding: .4rem .8rem; text-align: right; border-bottom: 1px solid var(--line) }
.figures td { white-space: nowrap } .figures th { min-width: 4.5rem; max-width: 16rem } .figures tbody th { text-align: left }
.figures thead th { border-bottom: 2px solid var(--ink) } .figures .ratio { font-weight: bold }
.classes, .pairs, .counts { font-size: .9rem }
.classes th, .classes td, .pairs th, .pairs td, .counts th, .counts td { padding: .15rem 1.2rem .15rem 0 }
.classes td, .pairs td, .counts td { text-align: right; white-space: nowrap }
.classes tbody th, .pairs tbody th { min-width: 8rem; max-width: 22rem }
.classes thead th, .pairs thead th, .counts thead th { color: var(--faint) }
.bar { display: inline-block; width: 7rem; height: .6rem; margin-right: .6rem; background: var(--line) }
.bar i { display: block; height: 100% } .bar + b { display: inline-block; min-width: 2.7rem; font-weight: normal }
.swatch { display: inline-block; flex: none; width: 1.2em; height: .9em; margin-right: .5em;
  border: 1px solid var(--faint); vertical-align: -.05em }
.settings { font-size: .9rem; width: 100% }
.settings th, .settings td { padding: .15rem 1.2rem .15rem 0; vertical-align: top; min-width: 6rem }
.settings th { color: var(--faint); width: 14rem; min-width: 9.5rem } .settings thead th { color: var(--ink) }
.settings .differs td { background: var(--mark) }
.charts { display: grid; gap: .6rem 1.6rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)) }
.charts > * { min-width: 0 }
svg { display: block; width: 100%; height: auto }
.scroll { overflow-x: auto; max-width: 100%; margin: .4rem 0 }
.tall { max-height: 34rem; overflow-y: auto }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--series1) }
summary { cursor: pointer; margin: .6rem 0 }
.pictures { display: grid; gap: .4rem; max-width: 90rem; grid-auto-flow: row }
.pictures b { font-size: .9rem; font-weight: bold; align-self: end; min-width: 0 }
.pictures img { width: 100%; image-rendering: pixelated; display: block }
.labelled { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)) }
.labelled figure { margin: 0; min-width: 0; font-size: .9rem } .labelled img { width: 100%; max-width: 16rem;
  image-rendering: pixelated; display: block }
@media (max-width: 40rem) { .figures th, .figures td { padding: .3rem .4rem } .figures tbody th { min-width: 6rem }
  .bar { width: 4rem } }
)";

std::string colors() {
  std::string light, dark;
  for (size_t i = 0; i < io::kSeriesColors; ++i) {
    light += fmt::format("--series{}:{};", i, io::series_color(i));
    dark += fmt::format("--series{}:{};", i, io::dark_series_color(i));
  }
  return fmt::format(
      ":root{{{}}}\n@media (prefers-color-scheme: dark) "
      "{{\n:root{{--ink:#e5e7eb;--faint:#9ca3af;--line:#374151;"
      "--paper:#111827;--mark:#453a12;{}}}\n{}}}\n",
      light, dark, io::dark_chart_style());
}

}  // namespace

std::string html_page(const std::string& title, const std::string& body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "img-src data:\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0}</title>\n<style>{1}{2}</style></head>\n<body>\n<h1>{0}</h1>\n{3}</body></html>\n",
      io::escape_xml(title), kStyle, colors(), body);
}

std::string html_section(const std::string& title, const std::string& content) {
  return content.empty() ? "" : "<h2>" + io::escape_xml(title) + "</h2>\n" + content;
}

std::string html_scroll_box(const std::string& name, const std::string& content) {
  return fmt::format("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\n{}</div>\n",
                     io::escape_xml(name), content);
}

std::string html_charts(const std::vector<std::string>& svgs) {
  std::string html;
  for (const std::string& svg : svgs)
    if (!svg.empty()) html += "<div>" + svg + "</div>\n";
  return html.empty() ? html : "<div class=\"charts\">\n" + html + "</div>\n";
}

std::string html_table(const char* style_class, const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows) {
  std::string html = fmt::format("<table class=\"{}\"><thead><tr>", style_class);
  for (size_t i = 0; i < head.size(); ++i)
    html += head[i].empty() ? "<td></td>" : "<th scope=\"col\">" + io::escape_xml(head[i]) + "</th>";
  html += "</tr></thead><tbody>\n";
  for (const auto& row : rows) {
    html += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string cell = io::escape_xml(row[i]);
      html += i == 0 ? "<th scope=\"row\">" + cell + "</th>" : "<td>" + cell + "</td>";
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table>\n";
}

std::string html_picture(const at::Tensor& rgb, const std::string& what) {
  return fmt::format("<img alt=\"{}\" src=\"data:image/png;base64,{}\">", io::escape_xml(what),
                     base64(io::encode_png(rgb.contiguous())));
}

std::string html_swatch(size_t run) {
  return fmt::format("<i class=\"swatch\" style=\"background:var(--series{})\"></i>",
                     run % io::kSeriesColors);
}

std::string html_swatch(const int* rgb) {
  return fmt::format("<i class=\"swatch\" style=\"background:rgb({},{},{})\"></i>", rgb[0], rgb[1], rgb[2]);
}

}  // namespace palimpsest::train
