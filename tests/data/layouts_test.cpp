#include "palimpsest/data/layouts.h"

#include "palimpsest/data/class_set.h"
#include "tests/support/dataset.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tolerance.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>

namespace palimpsest::data {
namespace {

using testing::expect_error;
using testing::get;
using testing::plain;
using testing::put;
using testing::put_image;
using testing::put_label;
using testing::TemporaryFolder;

namespace fs = std::filesystem;

/// Writes an image and its label of one id.
void put_pair(const fs::path& image, const fs::path& label, int id) {
  put_image(image, 4, 6, 50);
  put_label(label, 4, 6, id);
}

/// A small copy of a data set with one label per pixel: in `split` one pair with the official id `id`.
struct Copy {
  const char *kind, *split, *image, *label;
  int id, train_id;
  const char* list = "";  // the list that names the image, if the layout has one
};

const Copy kCopies[] = {
    {"cityscapes", "train", "leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png",
     "gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png", 33, 18},
    {"cityscapes", "val", "leftImg8bit/val/lindau/lindau_000000_000019_leftImg8bit.png",
     "gtFine/val/lindau/lindau_000000_000019_gtFine_labelTrainIds.png", 18, 18},
    {"cocostuff10k", "train", "images/COCO_train2014_000000000077.jpg",
     "annotations/COCO_train2014_000000000077.png", 182, 90, "imageLists/train.txt"},
    {"cocostuff10k", "val", "images/COCO_train2014_000000000078.jpg",
     "annotations/COCO_train2014_000000000078.png", 92, 0, "imageLists/test.txt"},
    {"cocostuff164k", "train2017", "train2017/000000000009.jpg", "stuffthingmaps/train2017/000000000009.png",
     91, 0},
    {"cocostuff164k", "val", "images/val2017/000000000139.jpg", "annotations/val2017/000000000139.png", 181,
     90},
    {"vistas", "train", "training/images/a-b.jpg", "training/labels/a-b.png", 64, 64},
    {"vistas", "validation", "validation/images/a-b.jpg", "validation/v1.2/labels/a-b.png", 0, 0},
    {"voc", "val", "JPEGImages/2007_000033.jpg", "SegmentationClass/2007_000033.png", 20, 20,
     "ImageSets/Segmentation/val.txt"},
    {"voc", "train_aug", "JPEGImages/2008_000008.jpg", "SegmentationClassAug/2008_000008.png", 0, 0,
     "ImageSets/Segmentation/trainaug.txt"},
    {"ade20k", "train", "images/training/ADE_train_00000001.jpg",
     "annotations/training/ADE_train_00000001.png", 150, 149},
    {"ade20k", "validation", "images/validation/ADE_val_00000001.jpg",
     "annotations/validation/ADE_val_00000001.png", 1, 0},
    {"camvid", "train", "train/0001TP_006690.png", "trainannot/0001TP_006690.png", 10, 10},
    {"camvid", "test", "test/0001TP_008550.jpg", "testannot/0001TP_008550.png", 0, 0},
};

void put_copy(const TemporaryFolder& root, const Copy& copy) {
  put_pair(root / copy.image, root / copy.label, copy.id);
  if (*copy.list) put(root / copy.list, fs::path(copy.image).stem().string() + "\r\n\n");
  if (std::string(copy.kind) == "camvid") fs::create_directories(root / "trainannot");  // its marker
}

std::shared_ptr<Dataset> open_copy(const TemporaryFolder& root, const std::string& kind,
                                   const std::string& split, const std::string& annotations = "fine") {
  return open_layout(*find_layout(kind), root.path(), split, annotations, plain());
}

std::string name_of(const ::testing::TestParamInfo<Copy>& info) {
  return std::string(info.param.kind) + "_" + info.param.split;
}

class Layouts : public ::testing::TestWithParam<Copy> {};
INSTANTIATE_TEST_SUITE_P(, Layouts, ::testing::ValuesIn(kCopies), name_of);

TEST_P(Layouts, GiveTheImagesOfASplitWithTrainIds) {
  const Copy& copy = GetParam();
  const TemporaryFolder root;
  put_copy(root, copy);
  const auto dataset = open_copy(root, copy.kind, copy.split);
  ASSERT_EQ(dataset->size(), 1);
  EXPECT_EQ(dataset->class_names(), class_set(copy.kind)->names);
  const Sample sample = get(*dataset, 0);
  EXPECT_EQ(sample.name, (root / copy.image).string());
  EXPECT_EQ(sample.image.sizes(), (at::IntArrayRef{3, 4, 6}));
  EXPECT_TRUE(sample.target.eq(copy.train_id).all().item<bool>()) << sample.target[0][0].item<int64_t>();
}

TEST_P(Layouts, VoidBecomesTheIgnoredId) {
  const Copy& copy = GetParam();
  const TemporaryFolder root;
  put_copy(root, copy);
  at::Tensor label = at::full({4, 6}, copy.id, at::kByte);
  const bool train_ids = std::string(copy.label).ends_with("TrainIds.png");
  label[1][2] = train_ids ? 255 : class_set(copy.kind)->official_void;
  io::write_png(root / copy.label, label);
  const at::Tensor target = get(*open_copy(root, copy.kind, copy.split), 0).target;
  EXPECT_EQ(target[1][2].item<int64_t>(), 255);
  EXPECT_EQ(target.eq(copy.train_id).sum().item<int64_t>(), 23);
}

TEST_P(Layouts, AnImageWithoutItsLabelIsAnErrorAtOnce) {
  const Copy& copy = GetParam();
  const TemporaryFolder root;
  put_copy(root, copy);
  const fs::path other =
      fs::path(copy.label).parent_path() / ("other" + fs::path(copy.label).filename().string());
  fs::rename(root / copy.label, root / other.string());
  expect_error(ErrorKind::kData, {copy.image, "has no label", copy.label},
               [&] { open_copy(root, copy.kind, copy.split); });
}

TEST_P(Layouts, ALabelWithoutItsImageIsAnErrorAtOnce) {
  const Copy& copy = GetParam();
  const TemporaryFolder root;
  put_copy(root, copy);
  const fs::path image = root / copy.image;
  const std::string other = "other" + image.filename().string();
  fs::rename(image, image.parent_path() / other);
  put_label(root / (fs::path(copy.label).parent_path() / ("other" + fs::path(copy.label).filename().string()))
                       .string(),
            4, 6, copy.id);
  const std::vector<std::string> says =
      *copy.list ? std::vector<std::string>{copy.image, "does not exist", copy.list}
                 : std::vector<std::string>{copy.label, "has no image"};
  expect_error(ErrorKind::kData, says, [&] { open_copy(root, copy.kind, copy.split); });
}

TEST_P(Layouts, AnIdOutsideTheMappingIsOneLineWithFileIdAndCount) {
  const Copy& copy = GetParam();
  const TemporaryFolder root;
  put_copy(root, copy);
  at::Tensor label = at::full({4, 6}, copy.id, at::kByte);
  label[2][5] = 200;
  label[3][0] = 200;
  io::write_png(root / copy.label, label);
  const auto dataset = open_copy(root, copy.kind, copy.split);
  expect_error(ErrorKind::kData, {copy.label, "class id 200 at row 2, column 5", "2 pixels", "allowed are"},
               [&] { get(*dataset, 0); });
}

TEST_P(Layouts, AnUnknownSplitIsAnErrorWithTheNearestName) {
  const Copy& copy = GetParam();
  const TemporaryFolder root;
  put_copy(root, copy);
  const Split& split = find_split(*find_layout(copy.kind), copy.split);
  expect_error(ErrorKind::kUsage, {"unknown split of " + std::string(copy.kind), split.name},
               [&] { open_copy(root, copy.kind, split.name + "x"); });
}

TEST_P(Layouts, ARootOneFolderUpOrDownNamesTheRightOne) {
  const Copy& copy = GetParam();
  const TemporaryFolder above;
  const fs::path root = above / "the set";
  const auto open = [&](const fs::path& place) {
    open_layout(*find_layout(copy.kind), place.string(), copy.split, "fine", plain());
  };
  put_pair(root / copy.image, root / copy.label, copy.id);
  if (*copy.list) put(root / copy.list, "");
  fs::create_directories(root / find_layout(copy.kind)->markers.front());
  expect_error(ErrorKind::kData, {"is not the folder of " + std::string(copy.kind), root.string()},
               [&] { open(above.path()); });
  fs::create_directories(root / "notes");
  expect_error(ErrorKind::kData, {"is not the folder of " + std::string(copy.kind), "'" + root.string()},
               [&] { open(root / "notes"); });
}

TEST(Layout, TheIgnoreIdMustBeAByteThatIsNoClass) {
  const TemporaryFolder root;
  put_copy(root, kCopies[8]);
  for (const auto& [ignore_id, says] : {std::pair(-1, "in [0, 255], got -1"), std::pair(1000, "got 1000"),
                                        std::pair(20, "no class of the labels, got the class 20")})
    expect_error(ErrorKind::kUsage, {"ignore id", says},
                 [&] { open_layout(*find_layout("voc"), root.path(), "val", "fine", plain(ignore_id)); });
  EXPECT_NO_THROW(open_layout(*find_layout("voc"), root.path(), "val", "fine", plain(21)));
}

TEST(Cityscapes, CoarseLabelsAreChosenByTheirName) {
  const TemporaryFolder root;
  const std::string image = "train_extra/bonn/bonn_000000_000001_";
  put_pair(root / ("leftImg8bit/" + image + "leftImg8bit.png"),
           root / ("gtCoarse/" + image + "gtCoarse_labelIds.png"), 7);
  EXPECT_EQ(get(*open_copy(root, "cityscapes", "train_extra", "coarse"), 0).target[0][0].item<int64_t>(), 0);
  expect_error(ErrorKind::kUsage, {"train_extra", "coarse labels only", "--annotations"},
               [&] { open_copy(root, "cityscapes", "train_extra"); });
}

TEST(Cityscapes, OfficialIdsAreTakenWhereBothKindsOfLabelsLie) {
  const TemporaryFolder root;
  put_copy(root, kCopies[0]);
  put_label(root / "gtFine/train/aachen/aachen_000000_000019_gtFine_labelTrainIds.png", 4, 6, 18);
  put_label(root / "gtFine/train/aachen/aachen_000000_000019_gtFine_color.png", 4, 6, 77);
  const auto dataset = open_copy(root, "cityscapes", "train");
  ASSERT_EQ(dataset->size(), 1);
  EXPECT_EQ(get(*dataset, 0).target[0][0].item<int64_t>(), 18);
}

TEST(Cityscapes, ACityWithoutLabelsIsMissedByItsImages) {
  const TemporaryFolder root;
  put_copy(root, kCopies[0]);
  put_image(root / "leftImg8bit/train/bonn/bonn_000000_000019_leftImg8bit.png", 4, 6);
  expect_error(ErrorKind::kData, {"bonn_000000_000019_leftImg8bit.png", "has no label", "gtFine/train/bonn"},
               [&] { open_copy(root, "cityscapes", "train"); });
}

TEST(Vistas, TheLabelsOfTheTestImagesAreNotPublished) {
  const TemporaryFolder root;
  put_copy(root, kCopies[6]);
  put_image(root / "testing/images/t.jpg", 4, 6);
  expect_error(ErrorKind::kUsage, {"testing of vistas", "not published"},
               [&] { open_copy(root, "vistas", "testing"); });
}

TEST(CocoStuff, AMatlabLabelSaysWhichConversionItNeeds) {
  const TemporaryFolder root;
  put_copy(root, kCopies[2]);
  const fs::path label = root / kCopies[2].label;
  fs::rename(label, fs::path(label).replace_extension(".mat"));
  expect_error(ErrorKind::kData, {"077.mat", "MATLAB", "variable S", "077.png"},
               [&] { open_copy(root, "cocostuff10k", "train"); });
}

TEST(Voc, AListMayNameFilesAndMissesNoFault) {
  const TemporaryFolder root;
  put_copy(root, kCopies[8]);
  put(root / "ImageSets/Segmentation/val.txt",
      "/JPEGImages/2007_000033.jpg /SegmentationClassAug/2007_000033.png\ngone\nlost\n");
  expect_error(ErrorKind::kData, {"JPEGImages/gone.jpg", "does not exist", "3 faults more", "data check"},
               [&] { open_copy(root, "voc", "val"); });
  const auto skipping =
      open_layout(*find_layout("voc"), root.path(), "val", "fine", plain(), /*skip_bad=*/true);
  ASSERT_EQ(skipping->size(), 3);
  EXPECT_NO_THROW(get(*skipping, 0));
  expect_error(ErrorKind::kData, {"JPEGImages/lost.jpg", "does not exist"}, [&] { get(*skipping, 2); });
  put(root / "ImageSets/Segmentation/val.txt", "\n");
  expect_error(ErrorKind::kData, {"val.txt", "names no image"}, [&] { open_copy(root, "voc", "val"); });
  fs::remove(root / "ImageSets/Segmentation/val.txt");
  expect_error(ErrorKind::kData, {"val.txt", "does not exist"}, [&] { open_copy(root, "voc", "val"); });
}

/// Writes a binary file of CIFAR: record i has the last label labels[i] and pixels whose planes are 1, 2 and 3.
void put_cifar(const fs::path& path, const std::vector<int>& labels, int label_bytes) {
  std::string bytes;
  for (const int label : labels) {
    bytes += std::string(label_bytes - 1, '\7') + static_cast<char>(label);
    for (const char plane : {1, 2, 3}) bytes += std::string(1024, plane);
  }
  put(path, bytes);
}

TEST(Cifar, BinaryFilesGiveImagesAndLabels) {
  const TemporaryFolder root;
  for (int i = 1; i <= 5; ++i) put_cifar(root / ("data_batch_" + std::to_string(i) + ".bin"), {i, 9}, 1);
  put_cifar(root / "test_batch.bin", {3}, 1);
  const auto train = open_copy(root, "cifar10", "train");
  ASSERT_EQ(train->size(), 10);
  const Sample sample = get(*train, 4);
  EXPECT_EQ(sample.target.item<int64_t>(), 3);
  EXPECT_EQ(sample.name, (root / "data_batch_3.bin").string() + "/0");
  EXPECT_EQ(sample.image.sizes(), (at::IntArrayRef{3, 32, 32}));
  for (int64_t c = 0; c < 3; ++c)
    EXPECT_NEAR(sample.image[c][31][0].item<double>(),
                (static_cast<double>(c + 1) / 255 - plain().mean[c]) / plain().std[c], testing::kRoundingF32);
  EXPECT_EQ(get(*open_copy(root, "cifar10", "val"), 0).target.item<int64_t>(), 3);
  EXPECT_EQ(train->class_names().at(9), "class 9");
  put(root / "batches.meta.txt", "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n");
  EXPECT_EQ(open_copy(root, "cifar10", "train")->class_names().at(9), "truck");
}

TEST(Cifar, TheFineLabelsOfCifar100Count) {
  const TemporaryFolder root;
  put_cifar(root / "train.bin", {0, 99}, 2);
  put_cifar(root / "test.bin", {42}, 2);
  EXPECT_EQ(get(*open_copy(root, "cifar100", "train"), 1).target.item<int64_t>(), 99);
  EXPECT_EQ(get(*open_copy(root, "cifar100", "test"), 0).target.item<int64_t>(), 42);
  put(root / "fine_label_names.txt", "apple\n");
  expect_error(ErrorKind::kData, {"fine_label_names.txt", "100 classes", "got 1"},
               [&] { open_copy(root, "cifar100", "test"); });
}

TEST(Cifar, DamagedFilesAreErrorsThatNameThem) {
  const TemporaryFolder root;
  put_cifar(root / "test_batch.bin", {3, 10}, 1);
  expect_error(ErrorKind::kData, {"test_batch.bin", "label 10 in record 1", "0 to 9"},
               [&] { open_copy(root, "cifar10", "test"); });
  put(root / "test_batch.bin", std::string(3073 + 100, '\1'));
  expect_error(ErrorKind::kData, {"test_batch.bin", "3073 bytes", "3173", "truncated"},
               [&] { open_copy(root, "cifar10", "test"); });
  put(root / "test_batch.bin", "");
  expect_error(ErrorKind::kData, {"test_batch.bin", "truncated"},
               [&] { open_copy(root, "cifar10", "test"); });
  expect_error(ErrorKind::kData, {"data_batch_1.bin", "does not exist"},
               [&] { open_copy(root, "cifar10", "train"); });
}

constexpr const char* kFox = "n02119789";
constexpr const char* kSetter = "n02100735";

TEST(ImageNet, TrainAndValMayHaveClassFolders) {
  const TemporaryFolder root;
  for (const std::string split : {"train", "val"})
    for (const std::string name : {kFox, kSetter})
      put_image(root / (split + "/" + name + "/" + name + "_1.JPEG"), 4, 6);
  for (const std::string split : {"train", "val"}) {
    const auto dataset = open_copy(root, "imagenet", split);
    EXPECT_EQ(dataset->size(), 2);
    EXPECT_EQ(dataset->class_names(), (std::vector<std::string>{kSetter, kFox}));
    EXPECT_EQ(get(*dataset, 1).target.item<int64_t>(), 1);
  }
}

TEST(ImageNet, AFlatValTakesTheNumbersOfTheDevelopmentKit) {
  const TemporaryFolder root;
  for (int i = 1; i <= 3; ++i)
    put_image(root / ("val/ILSVRC2012_val_0000000" + std::to_string(i) + ".JPEG"), 4, 6);
  fs::create_directories(root / "val/thumbnails");  // no class folder
  const auto open = [&] { return open_copy(root, "imagenet", "val"); };
  expect_error(ErrorKind::kData,
               {"lie in no class folders", "ILSVRC2012_validation_ground_truth.txt", "missing"}, open);
  put(root / "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", "1\n2\n1\n");
  expect_error(ErrorKind::kData, {"map_clsloc.txt", "missing"}, open);
  put(root / "map_clsloc.txt", "n02119789 1 kit_fox\nn02100735 2 English_setter\n");
  const auto dataset = open();
  ASSERT_EQ(dataset->size(), 3);
  EXPECT_EQ(dataset->class_names(), (std::vector<std::string>{kSetter, kFox}));
  EXPECT_TRUE(get(*dataset, 0).name.ends_with("00000002.JPEG"));  // the setter
  EXPECT_EQ(get(*dataset, 0).target.item<int64_t>(), 0);
  EXPECT_TRUE(get(*dataset, 2).name.ends_with("00000003.JPEG"));
  EXPECT_EQ(get(*dataset, 2).target.item<int64_t>(), 1);
  put(root / "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", "1\n2\n");
  expect_error(ErrorKind::kData, {"ground_truth.txt", "2 lines", "3 images"}, open);
  put(root / "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", "1\n2\n3\n");
  expect_error(ErrorKind::kData, {"line 3", "the number '3'", "map_clsloc.txt"}, open);
}

}  // namespace
}  // namespace palimpsest::data
