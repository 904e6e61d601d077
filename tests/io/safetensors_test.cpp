#include "palimpsest/io/safetensors.h"

#include "palimpsest/base/random.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_folder.h"

#include <ATen/ATen.h>

#include <cstring>
#include <stdexcept>

namespace palimpsest::io {
namespace {

using testing::bytes_of;
using testing::expect_error;
using testing::put;
using testing::TemporaryFolder;

std::string with_length(const std::string& header) {
  std::string length(8, '\0');
  const uint64_t n = header.size();
  std::memcpy(length.data(), &n, 8);
  return length + header;
}

Safetensors one_of_each() {
  Safetensors contents;
  const at::Tensor values = at::tensor({0.f, 1.f, -2.5f, 1e30f, -1e-30f, 5.f}).reshape({2, 3});
  for (const auto& [name, dtype] :
       std::initializer_list<std::pair<const char*, at::ScalarType>>{{"bool", at::kBool},
                                                                     {"i8", at::kChar},
                                                                     {"u8", at::kByte},
                                                                     {"f16", at::kHalf},
                                                                     {"bf16", at::kBFloat16},
                                                                     {"f32", at::kFloat},
                                                                     {"i16", at::kShort},
                                                                     {"i32", at::kInt},
                                                                     {"f64", at::kDouble},
                                                                     {"i64", at::kLong}}) {
    const bool integral = at::isIntegralType(dtype, true);
    contents.tensors.emplace_back(name, (integral ? values.clamp(0, 7) : values).to(dtype));
  }
  contents.tensors.emplace_back("scalar", at::scalar_tensor(3.5));
  contents.tensors.emplace_back("none", at::empty({0, 4}));
  contents.tensors.emplace_back("odd \"name\" \\ \xC3\xA9\n", at::arange(3, at::kByte));
  contents.metadata = {{"step", "12"}, {"config", "a = \"b\"\n[c]\n"}};
  return contents;
}

void expect_same(const Safetensors& got, const Safetensors& want) {
  EXPECT_EQ(got.metadata, want.metadata);
  ASSERT_EQ(got.tensors.size(), want.tensors.size());
  for (std::size_t i = 0; i < want.tensors.size(); ++i) {
    EXPECT_EQ(got.tensors[i].first, want.tensors[i].first);
    EXPECT_EQ(got.tensors[i].second.scalar_type(), want.tensors[i].second.scalar_type());
    EXPECT_TRUE(got.tensors[i].second.equal(want.tensors[i].second)) << want.tensors[i].first;
  }
}

TEST(Safetensors, WhatIsWrittenIsReadBackInOrder) {
  const TemporaryFolder folder;
  const Safetensors contents = one_of_each();
  write_safetensors(folder / "a", contents);
  const Safetensors read = read_safetensors(folder / "a");
  expect_same(read, contents);
  ASSERT_NE(read.find("f64"), nullptr);
  EXPECT_EQ(read.find("f64")->scalar_type(), at::kDouble);
  EXPECT_EQ(read.find("f65"), nullptr);
}

TEST(Safetensors, NothingIsAFileToo) {
  const TemporaryFolder folder;
  write_safetensors(folder / "a", {});
  expect_same(read_safetensors(folder / "a"), {});
}

TEST(Safetensors, TheSameContentsGiveTheSameBytes) {
  const TemporaryFolder folder;
  write_safetensors(folder / "a", one_of_each());
  write_safetensors(folder / "b", one_of_each());
  write_safetensors(folder / "c", read_safetensors(folder / "a"));
  EXPECT_EQ(bytes_of(folder / "a"), bytes_of(folder / "b"));
  EXPECT_EQ(bytes_of(folder / "a"), bytes_of(folder / "c"));
}

TEST(Safetensors, TheBytesAreThoseOfTheFormat) {
  const TemporaryFolder folder;
  Safetensors contents;
  contents.tensors = {{"b", at::tensor({1, 2, 3}, at::kByte)}, {"a", at::tensor({1.f})}};
  contents.metadata = {{"k", "v"}};
  write_safetensors(folder / "a", contents);
  // Wider elements first, so that "a" is aligned; the header keeps the order given and is padded to 8 bytes.
  std::string header = R"({"__metadata__":{"k":"v"},"b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},)"
                       R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(bytes_of(folder / "a"), with_length(header) + std::string("\0\0\x80\x3F\1\2\3", 7));
}

TEST(Safetensors, AnyStridesAreWrittenRowByRow) {
  const TemporaryFolder folder;
  const at::Tensor base = at::arange(2 * 3 * 4 * 5, at::kFloat).reshape({2, 3, 4, 5});
  Safetensors contents;
  contents.tensors = {
      {"channels-last", base.contiguous(at::MemoryFormat::ChannelsLast)},
      {"transposed", base.transpose(0, 3)},
      {"sliced", base.slice(3, 1, 5, 2)},
      {"expanded", at::arange(4, at::kFloat).expand({3, 4})},
      {"large, one row at a time", at::arange(3 << 20, at::kFloat).reshape({3 << 19, 2}).t()},
      {"large, many rows at a time", at::arange(3 << 20, at::kFloat).reshape({2, 3 << 19}).t()}};
  write_safetensors(folder / "a", contents);
  expect_same(read_safetensors(folder / "a"), contents);
}

TEST(Safetensors, WhatTheFormatCannotHoldIsRefused) {
  const TemporaryFolder folder;
  const at::Tensor one = at::ones({1});
  const auto refused = [&](Safetensors contents) {
    EXPECT_THROW(write_safetensors(folder / "a", contents), std::invalid_argument);
    EXPECT_TRUE(folder.names().empty());
  };
  refused({{{"a", one}, {"a", one}}, {}});
  refused({{{"__metadata__", one}}, {}});
  refused({{{"a", at::Tensor()}}, {}});
  refused({{{"a", one.to(at::kComplexFloat)}}, {}});
  refused({{{"a", one.to_sparse()}}, {}});
  refused({{{"\xFF", one}}, {}});
  refused({{}, {{"key", "\xFF"}}});
}

TEST(Safetensors, AFullDiskIsAnErrorAndTheOldFileStays) {
  const TemporaryFolder folder;
  const Safetensors contents = one_of_each();
  write_safetensors(folder / "a", contents);
  const std::string before = bytes_of(folder / "a");
  {
    const testing::FileSizeLimit limit(1 << 16);
    expect_error(ErrorKind::kOutput, {(folder / "a").string(), "File too large"},
                 [&] { write_safetensors(folder / "a", {{{"big", at::ones({1 << 16})}}, {}}); });
  }
  EXPECT_EQ(bytes_of(folder / "a"), before);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a"});
}

TEST(Safetensors, AMissingFileIsNamed) {
  expect_error(ErrorKind::kCheckpoint, {"no/such/file", "No such file or directory"},
               [] { read_safetensors("no/such/file"); });
}

TEST(Safetensors, AFileCutOffAnywhereIsAnError) {
  const TemporaryFolder folder;
  write_safetensors(folder / "a", one_of_each());
  const std::string bytes = bytes_of(folder / "a");
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    put(folder / "cut", bytes.substr(0, length));
    SCOPED_TRACE("cut to " + std::to_string(length) + " of " + std::to_string(bytes.size()));
    expect_error(ErrorKind::kCheckpoint, {(folder / "cut").string()},
                 [&] { read_safetensors(folder / "cut"); });
  }
  put(folder / "long", bytes + "x");
  expect_error(ErrorKind::kCheckpoint, {"belong to no tensor"}, [&] { read_safetensors(folder / "long"); });
}

TEST(Safetensors, AForeignFileIsAnError) {
  const TemporaryFolder folder;
  put(folder / "a", "\x89PNG\r\n\x1A\n and so on");
  expect_error(ErrorKind::kCheckpoint, {"not a safetensors file"}, [&] { read_safetensors(folder / "a"); });
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

struct BadHeader {
  std::string header;
  const char* complaint;
};
void PrintTo(const BadHeader& bad, std::ostream* out) {
  *out << bad.header;
}
class BadHeaders : public ::testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaders, AreRefusedSayingWhatIsWrong) {
  const TemporaryFolder folder;
  put(folder / "a", with_length(GetParam().header) + "12345678");  // 8 bytes of values
  expect_error(ErrorKind::kCheckpoint, {(folder / "a").string(), GetParam().complaint},
               [&] { read_safetensors(folder / "a"); });
}

INSTANTIATE_TEST_SUITE_P(
    Safetensors, BadHeaders,
    ::testing::Values(
        BadHeader{"", "does not begin with '{'"}, BadHeader{"[]", "does not begin with '{'"},
        BadHeader{" {}", "does not begin with '{'"}, BadHeader{"{", "not JSON"},
        BadHeader{"{} {}", "not JSON"}, BadHeader{"{\"a\":\"\xFF\"}", "not JSON"},
        BadHeader{"{}", "belong to no tensor"}, BadHeader{R"({"a":1})", "not an object"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2]}})", "needs exactly"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offset":[0,8]}})", "no data_offsets"},
        BadHeader{R"({"a":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]}})",
                  "\"F8_E4M3\"; known are F32, F64"},
        BadHeader{R"({"a":{"dtype":5,"shape":[8],"data_offsets":[0,8]}})", "element type 5"},
        BadHeader{R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", "shape is not a list"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "shape has -2"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", "shape has 2.0"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",
                  "needs 12 bytes, its data_offsets give 8"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "begin <= end"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,16]}})", "[begin, end]"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", "truncated"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "behind a hole"},
        BadHeader{
            R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
            "inside another tensor"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
                  "too large"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})",
                  "too large"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,8]}})", "too large"},
        BadHeader{
            R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
            "'a' twice"},
        BadHeader{R"({"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "'dtype' twice"},
        BadHeader{R"({"__metadata__":[],"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
                  "not an object"},
        BadHeader{R"({"__metadata__":{"k":1},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
                  "not a text"},
        BadHeader{R"({"a":{"dtype":"BOOL","shape":[8],"data_offsets":[0,8]}})", "BOOL"},
        BadHeader{R"({"a":[[[[[[[[1]]]]]]]]})", "too deeply"},
        BadHeader{"{\"a\":{\"dtype\":\"U8\",\"shape\":[1" + repeated(",1", 64) + "],\"data_offsets\":[0,1]}}",
                  "64"},
        BadHeader{"{\"" + std::string(1'000'000, 'n') + "\":1}", "nnn...'"},
        BadHeader{R"({"a\u001b[31m\n":1})", R"('a\x1b[31m\n')"}));

TEST(Safetensors, AMessageIsShortWhateverTheFileHolds) {
  const TemporaryFolder folder;
  const std::string million(1'000'000, 'x');
  for (const std::string& header :
       {"{\"" + million + "\":1}", R"({"a":{"dtype":")" + million + R"(","shape":[8],"data_offsets":[0,8]}})",
        R"({"a":{"dtype":"U8","shape":[")" + million + R"("],"data_offsets":[0,8]}})", "{\"" + million}) {
    put(folder / "a", with_length(header) + "12345678");
    try {
      read_safetensors(folder / "a");
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_LT(std::string(error.what()).size(), 1000u);
    }
  }
}

TEST(Safetensors, TheHeaderAloneGivesNamesShapesAndTypes) {
  const TemporaryFolder folder;
  const std::string header =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F16","shape":[2,2147483648],"data_offsets":[0,8589934592]}})";
  put(folder / "a", with_length(header));
  std::filesystem::resize_file(folder / "a",
                               8 + header.size() + 8589934592);  // 8 GiB that take no room on the disk
  const auto contents = read_safetensors_header(folder / "a");
  ASSERT_EQ(contents.tensors.size(), 1u);
  EXPECT_EQ(contents.tensors[0].first, "a");
  EXPECT_EQ(contents.tensors[0].second.sizes(), (at::IntArrayRef{2, 2147483648}));
  EXPECT_EQ(contents.tensors[0].second.scalar_type(), at::kHalf);
  EXPECT_EQ(contents.metadata.at("k"), "v");
}

TEST(Safetensors, AHeaderAbove16MebibytesIsRefusedBeforeItIsParsed) {
  const TemporaryFolder folder;
  put(folder / "a", with_length("{" + std::string((16 << 20), ' ') + "}"));
  expect_error(ErrorKind::kCheckpoint, {"header would have 16777218 bytes"},
               [&] { read_safetensors(folder / "a"); });
}

TEST(Safetensors, AHeaderOfManyBracketsEndsInAnError) {
  const TemporaryFolder folder;
  for (const std::string opening : {"{\"a\":", "["}) {
    std::string header = "{\"a\":";
    while (header.size() < 1'000'000) header += opening;
    put(folder / "a", with_length(header));
    expect_error(ErrorKind::kCheckpoint, {"too deeply"}, [&] { read_safetensors(folder / "a"); });
  }
}

TEST(Safetensors, MutatedFilesGiveContentsOrAnErrorNeverACrash) {
  const TemporaryFolder folder;
  write_safetensors(folder / "a", one_of_each());
  const std::string bytes = bytes_of(folder / "a");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  const std::string alphabet = "{}[]\",:0123456789-.eE \\u\x01\x80\xFF";
  Random random(20240501);
  int errors = 0, accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string broken = bytes;
    for (int64_t edits = 1 + random.below(4); edits > 0; --edits) {
      const auto at = static_cast<std::size_t>(random.below(static_cast<int64_t>(8 + header_bytes)));
      switch (random.below(4)) {
        case 0:
          broken[at] ^= static_cast<char>(1 << random.below(8));
          break;
        case 1:
          broken[at] = alphabet[random.below(alphabet.size())];
          break;
        case 2:
          broken.erase(at, 1 + random.below(5));
          break;
        default:
          broken.insert(at, broken.substr(8 + random.below(header_bytes), random.below(30)));
      }
    }
    put(folder / "broken", broken);
    try {
      read_safetensors(folder / "broken");
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint) << error.what();
      ++errors;
    }
  }
  EXPECT_GT(errors, 2000);
  EXPECT_GT(accepted,
            0);  // a changed letter of a name is a valid file: the loop reaches the end of the reader, too
}

}  // namespace
}  // namespace palimpsest::io
