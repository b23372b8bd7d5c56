// .npy files: round trips, NumPy's own files, and every kind of broken one.

#include "cli/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/testing/random.h"

namespace attend::cli {
namespace {

using ::testing::HasSubstr;

class NpyTest : public ::testing::Test {
 protected:
  NpyTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "attend_npy_XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
  }
  ~NpyTest() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return (directory_ / name).string(); }

  std::string Store(const std::string& content) const {
    std::ofstream(Path("file.npy"), std::ios::binary) << content;
    return Path("file.npy");
  }

  // A version 1.0 file around `header` (padded by hand where the test wants it).
  std::string File(const std::string& header, const std::string& data) const {
    std::string content("\x93NUMPY\x01\x00", 8);
    content += static_cast<char>(header.size() & 0xff);
    content += static_cast<char>(header.size() >> 8);
    return Store(content + header + data);
  }

  absl::Status ReadStatus(const std::string& path) const { return ReadNpy(path).status(); }

  std::filesystem::path directory_;
};

TEST_F(NpyTest, RoundTripsEveryTypeAndRank) {
  testing::Random random(testing::MixSeed(testing::TestSeed(), "npy data"));
  const std::vector<std::vector<int64_t>> shapes = {{}, {1}, {7}, {0}, {3, 0, 5}, {2, 3, 4, 5}};
  for (const NpyType type : {NpyType::kF16, NpyType::kF32, NpyType::kF64, NpyType::kU16}) {
    for (const std::vector<int64_t>& shape : shapes) {
      int64_t elements = 1;
      for (const int64_t dimension : shape) elements *= dimension;
      std::vector<std::byte> data(static_cast<size_t>(elements * ElementBytes(type)));
      for (std::byte& byte : data) byte = static_cast<std::byte>(random.Next());
      ASSERT_TRUE(WriteNpy(Path("a.npy"), type, shape, data).ok());
      const absl::StatusOr<NpyArray> read = ReadNpy(Path("a.npy"));
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->type, type);
      EXPECT_EQ(read->shape, shape);
      EXPECT_EQ(read->data, data);
    }
  }
}

TEST_F(NpyTest, WritesWhatNumPyWrites) {
  const float values[] = {1.0f, -2.0f};
  ASSERT_TRUE(WriteNpy(Path("a.npy"), NpyType::kF32, std::vector<int64_t>{2},
                       std::as_bytes(std::span(values)))
                  .ok());
  std::ifstream file(Path("a.npy"), std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(file)), {});
  // numpy.save of the same array, byte by byte.
  std::string expected("\x93NUMPY\x01\x00\x76\x00", 10);
  expected += "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
  expected.append(127 - expected.size(), ' ');
  expected += '\n';
  expected += std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0", 8);
  EXPECT_EQ(content, expected);
}

TEST_F(NpyTest, ReadsOtherSpellingsOfTheHeader) {
  for (const char* header :
       {"{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3)}",
        "{\"shape\":(2,3,),\"descr\":\"<f2\",\"fortran_order\":False,}   \n",
        "  { 'fortran_order' : False , 'shape' : ( 2 , 3 ) , 'descr' : '<f2' } "}) {
    const absl::StatusOr<NpyArray> read = ReadNpy(File(header, std::string(12, 'x')));
    ASSERT_TRUE(read.ok()) << header << ": " << read.status();
    EXPECT_EQ(read->shape, (std::vector<int64_t>{2, 3}));
  }
  // One dimension has no order.
  EXPECT_TRUE(ReadNpy(File("{'descr': '<f2', 'fortran_order': True, 'shape': (1,)}", "xx")).ok());
}

TEST_F(NpyTest, ReadsVersionTwo) {
  const std::string header = "{'descr': '<u2', 'fortran_order': False, 'shape': (1,), }";
  std::string content("\x93NUMPY\x02\x00", 8);
  content += static_cast<char>(header.size());
  content += std::string(3, '\0');
  const absl::StatusOr<NpyArray> read = ReadNpy(Store(content + header + "ab"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->type, NpyType::kU16);
}

TEST_F(NpyTest, RefusesBrokenFiles) {
  const struct {
    const char* header;
    size_t data;
  } files[] = {
      {"", 0},
      {"{", 0},
      {"{}", 0},
      {"{'descr': '<f2'", 0},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (1,)", 2},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (1)}", 2},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (,)}", 2},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (-1,)}", 2},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (1, 1}", 2},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (1.0,)}", 2},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (1,)} x", 2},
      {"{'descr': '<f2', 'fortran_order': False}", 2},
      {"{'descr': '<f2', 'fortran_order': 0, 'shape': (1,)}", 2},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (1,), 'more': 1}", 2},
      {"{'descr': '<f2', 'descr': '<f2', 'fortran_order': False, 'shape': (1,)}", 2},
      {"{'descr': '>f2', 'fortran_order': False, 'shape': (1,)}", 2},
      {"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", 2},
      {"{'descr': '<f2', 'fortran_order': True, 'shape': (1, 2)}", 4},
      // More or less data than the shape says.
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (3,)}", 4},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (3,)}", 7},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (0,)}", 1},
      // Products past 64 bits, one of which wraps round to 0.
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,)}", 0},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", 0},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", 0},
      // Far more than there is: must not be allocated.
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,)}", 16},
  };
  for (const auto& row : files) {
    const absl::Status status = ReadStatus(File(row.header, std::string(row.data, 'x')));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.header << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("file.npy"));
  }
  std::string dimensions = "{'descr': '<f2', 'fortran_order': False, 'shape': (";
  for (int i = 0; i < 33; ++i) dimensions += "1, ";
  EXPECT_EQ(ReadStatus(File(dimensions + ")}", "xx")).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(NpyTest, RefusesWhatIsNoNpyFile) {
  EXPECT_EQ(ReadStatus(Path("absent.npy")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadStatus(directory_.string()).code(), absl::StatusCode::kNotFound);
  for (const std::string& content :
       {std::string(), std::string("\x93NUMP"), std::string("PK\x03\x04zip of many arrays"),
        std::string("\x93NUMPY\x01\x00", 8), std::string("\x93NUMPY\x09\x00\x02\x00{}", 12),
        std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff{}", 14)}) {
    EXPECT_EQ(ReadStatus(Store(content)).code(), absl::StatusCode::kInvalidArgument);
  }
}

// Every prefix of a good file, and a good file with any one byte changed, is read or refused, never
// anything worse.
TEST_F(NpyTest, SurvivesCutsAndFlips) {
  const std::vector<std::byte> data(24, std::byte{7});
  ASSERT_TRUE(WriteNpy(Path("a.npy"), NpyType::kF32, std::vector<int64_t>{2, 3}, data).ok());
  std::ifstream file(Path("a.npy"), std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(file)), {});
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(ReadNpy(Store(good.substr(0, length))).ok()) << length;
  }
  testing::Random random(testing::MixSeed(testing::TestSeed(), "npy header"));
  for (size_t at = 0; at < good.size(); ++at) {
    std::string changed = good;
    changed[at] = static_cast<char>(random.Next());
    const absl::StatusOr<NpyArray> read = ReadNpy(Store(changed));
    EXPECT_TRUE(!read.ok() || read->data.size() == data.size()) << at;
  }
}

TEST_F(NpyTest, SaysWhenItCannotWrite) {
  EXPECT_FALSE(WriteNpy(Path("no/such/folder.npy"), NpyType::kF32, {}, {}).ok());
  if (std::filesystem::exists("/dev/full")) {
    const std::vector<std::byte> data(1 << 20);
    EXPECT_FALSE(WriteNpy("/dev/full", NpyType::kF32, std::vector<int64_t>{1 << 18}, data).ok());
  }
}

}  // namespace
}  // namespace attend::cli
