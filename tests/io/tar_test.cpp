#include "palimpsest/io/tar.h"

#include "palimpsest/base/random.h"
#include "tests/support/expect_error.h"
#include "tests/support/tar.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <thread>

namespace palimpsest::io {
namespace {

using testing::expect_error;
using testing::kTarEnd;
using testing::put;
using testing::tar_header;
using testing::tar_member;
using testing::TemporaryFolder;

/// The names and contents of the files in an archive.
std::vector<std::pair<std::string, std::string>> contents_of(const std::filesystem::path& path) {
  TarReader archive(path);
  std::vector<std::pair<std::string, std::string>> found;
  while (const auto member = archive.next())
    if (!member->is_link) found.emplace_back(member->name, archive.read(*member));
  return found;
}

void expect_refused(const std::string& bytes, std::initializer_list<std::string> says) {
  const TemporaryFolder folder;
  put(folder / "bad.tar", bytes);
  std::vector<std::string> texts(says);
  texts.push_back((folder / "bad.tar").string());
  expect_error(ErrorKind::kData, texts, [&] { contents_of(folder / "bad.tar"); });
}

TEST(Tar, MembersComeInOrderWithTheirBytes) {
  const TemporaryFolder folder;
  const std::string block(512, 'b'), longer(513, 'c');
  put(folder / "a.tar", testing::tar({{"a", ""}, {"d/b", block}, {"d/c", longer}}));
  EXPECT_EQ(contents_of(folder / "a.tar"),
            (std::vector<std::pair<std::string, std::string>>{{"a", ""}, {"d/b", block}, {"d/c", longer}}));
}

TEST(Tar, AnArchiveOfNothingHasNoMember) {
  const TemporaryFolder folder;
  put(folder / "a.tar", kTarEnd);
  EXPECT_TRUE(contents_of(folder / "a.tar").empty());
}

TEST(Tar, LinksAreNamedAndFoldersAndDevicesPassedOver) {
  const TemporaryFolder folder;
  std::string archive;
  for (const char type : {'1', '2', '3', '4', '5', '6'})
    archive += tar_header(std::string("other ") + type, 700, type);
  put(folder / "a.tar", archive + tar_member("a", "x") + kTarEnd);
  EXPECT_EQ(contents_of(folder / "a.tar").size(), 1);
  TarReader reader(folder / "a.tar");
  for (const auto* name : {"other 1", "other 2"}) {
    const auto link = reader.next();
    ASSERT_TRUE(link);
    EXPECT_EQ(link->name, name);
    EXPECT_TRUE(link->is_link);
    EXPECT_EQ(link->size, 0);
  }
  EXPECT_FALSE(reader.next()->is_link);
}

TEST(Tar, LongNamesAndSizesOfGnuAndPaxReplaceThoseOfTheHeader) {
  const TemporaryFolder folder;
  const std::string name(300, 'n');
  const std::string path = "path=" + name + "\n";
  const std::string pax = "310 " + path + "10 size=3\n";
  put(folder / "a.tar", tar_member("@LongLink", name + '\0', 'L') + tar_member("short", "abc") +
                            tar_member("pax", pax, 'x') + tar_header("short", 0) + "xyz" +
                            std::string(509, '\0') + tar_member("global", "19 comment=for all\n", 'g') +
                            tar_member("last", "") + kTarEnd);
  EXPECT_EQ(contents_of(folder / "a.tar"),
            (std::vector<std::pair<std::string, std::string>>{{name, "abc"}, {name, "xyz"}, {"last", ""}}));
}

TEST(Tar, AnyCutIsAnErrorThatNamesFileAndByte) {
  const TemporaryFolder folder;
  const std::string whole = testing::tar({{"first", std::string(700, 'a')}, {"second", "b"}});
  Random random(1);
  for (int i = 0; i < 200; ++i) {
    const auto cut =
        random.below(static_cast<int64_t>(whole.size()) - 512);  // one block of zeros ends an archive
    put(folder / "cut.tar", whole.substr(0, cut));
    expect_error(ErrorKind::kData, {(folder / "cut.tar").string(), "truncated", "at byte"},
                 [&] { contents_of(folder / "cut.tar"); });
  }
}

TEST(Tar, TheErrorOfACutNamesTheMember) {
  const std::string whole = testing::tar({{"first", "a"}, {"second", std::string(700, 'b')}});
  expect_refused(whole.substr(0, 1024 + 512 + 100),
                 {"'second' has 700 bytes, of which 100 are there", "after member 'first'"});
  expect_refused(whole.substr(0, 1024), {"lacks the zeros", "at byte 1024 of 1024"});
}

TEST(Tar, ADamagedHeaderIsAnErrorWhateverItsByte) {
  const std::string whole = testing::tar({{"first", "a"}, {"second", "b"}});
  for (std::size_t at = 1024; at < 1024 + 500; at += 7) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x41);
    expect_refused(damaged, {"checksum", "byte 1024", "first"});
  }
  expect_refused(std::string(2000, 'x'), {"no tar archive"});
  expect_refused("", {"truncated"});
}

TEST(Tar, ExtendedHeadersThatCannotBeReadAreErrors) {
  const std::string end = tar_member("a", "x") + kTarEnd;
  for (const std::string pax :
       {"5 a=b", "9 a=b\n", "6 a=b\n7 a", "x a=b\n", "7 size\n", "99999999999999999999 a=b\n", "10 size=x\n"})
    expect_refused(tar_member("pax", pax, 'x') + end, {"pax"});
  expect_refused(tar_member("pax", "25 size=9999999999999999\n", 'x') + end,
                 {"truncated", "9999999999999999 bytes"});
  expect_refused(tar_member("@LongLink", "n", 'L') + kTarEnd, {"has no member"});
  expect_refused(tar_header("@LongLink", 1 << 30, 'L') + end, {"1073741824 bytes"});
  expect_refused(tar_member("pax", "22 GNU.sparse.major=1\n", 'x') + end, {"sparse"});
  expect_refused(tar_member("a", "x", 'S') + kTarEnd, {"sparse"});
}

TEST(Tar, AnotherArchiveBehindTheEndIsNotLeftOutSilently) {
  const std::string one = testing::tar({{"a", "x"}});
  expect_refused(one + one, {"something follows its end", "byte 2048"});
}

TEST(Tar, ThreadsReadMembersAtTheSameTime) {
  const TemporaryFolder folder;
  std::vector<std::pair<std::string, std::string>> members;
  for (int i = 0; i < 50; ++i)
    members.emplace_back(std::to_string(i), std::string(3000 + i, static_cast<char>('a' + i % 26)));
  put(folder / "a.tar", testing::tar(members));
  TarReader archive(folder / "a.tar");
  std::vector<TarMember> found;
  while (auto member = archive.next()) found.push_back(*member);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(archive.read(found[i]), members[i].second);
    });
  for (auto& thread : threads) thread.join();
}

TEST(Tar, AFileThatBecameShorterIsAnError) {
  const TemporaryFolder folder;
  put(folder / "a.tar", testing::tar({{"a", std::string(5000, 'x')}}));
  TarReader archive(folder / "a.tar");
  const auto member = archive.next();
  ASSERT_TRUE(member);
  std::filesystem::resize_file(folder / "a.tar", 1000);
  expect_error(ErrorKind::kData, {"a.tar", "shorter", "'a'"}, [&] { (void)archive.read(*member); });
}

TEST(Tar, WhatIsNoRegularFileIsRefused) {
  const TemporaryFolder folder;
  expect_error(ErrorKind::kData, {"nowhere", "No such file"}, [] { TarReader reader("nowhere"); });
  expect_error(ErrorKind::kData, {"not a regular file"}, [&] { TarReader reader(folder.path()); });
}

}  // namespace
}  // namespace palimpsest::io
