#include "palimpsest/kernels/cpu/abn/partition.h"

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using kernels::cpu::abn::Geometry;
using kernels::cpu::abn::Partition;
using kernels::cpu::abn::Piece;

Geometry geometry(Shape3 shape, DType dtype, Layout layout = Layout::kNCHW) {
  return Partition(shape, layout, dtype).geometry();
}

TEST(AbnPartition, MakesStripsOfSmallPlanesAndInF32FromMemoryOfLargerOnes) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    EXPECT_EQ(geometry({32, 64, 100}, dtype), Geometry::kStrip);
    EXPECT_EQ(geometry({32, 64, 101}, dtype), Geometry::kPlane);
    EXPECT_EQ(geometry({32, 64, 100}, dtype, Layout::kChannelsLast), Geometry::kColumns);
    const Geometry from_memory = dtype == DType::f32 ? Geometry::kStrip : Geometry::kPlane;
    EXPECT_EQ(geometry({32, 1024, 196}, dtype), from_memory);
    EXPECT_EQ(geometry({32, 1024, 400}, dtype), from_memory);
    EXPECT_EQ(geometry({32, 1024, 401}, dtype), Geometry::kPlane);
  }
  // 16 MiB, and an image more
  EXPECT_EQ(geometry({64, 512, 128}, DType::f32), Geometry::kPlane);
  EXPECT_EQ(geometry({65, 512, 128}, DType::f32), Geometry::kStrip);
  EXPECT_EQ(geometry({4, 8192, 196}, DType::f32), Geometry::kStrip);
  EXPECT_EQ(geometry({3, 12000, 196}, DType::f32), Geometry::kPlane);
}

TEST(AbnPartition, CutsEveryValueIntoOnePiece) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Layout layout : {Layout::kNCHW, Layout::kChannelsLast})
      for (const Shape3 shape :
           {Shape3{4, 5401, 196}, Shape3{32, 70, 49}, Shape3{40, 2, 3600}, Shape3{1, 1, 150001},
            Shape3{3, 520, 200}, Shape3{2, 40, 2000}, Shape3{7, 5, 33}}) {
        const Partition partition(shape, layout, dtype);
        int64_t values = 0, channels = 0;
        for (int64_t panel = 0; panel < partition.panels(); ++panel)
          for (int64_t segment = 0; segment < partition.segments(); ++segment) {
            const Piece piece = partition.piece(panel, segment);
            values += piece.block.rows * piece.block.width;
            channels += segment == 0 ? piece.channels : 0;
          }
        EXPECT_EQ(values, shape.elements()) << shape.n << " " << shape.c << " " << shape.s;
        EXPECT_EQ(channels, shape.c * partition.pixels_per_row());
      }
}

TEST(AbnPartition, NamesTheBlockThatIsReadAfterAPlane) {
  // One segment; several of images; several of pixels.
  for (const Shape3 shape : {Shape3{8, 6, 784}, Shape3{32, 6, 12544}, Shape3{2, 6, 500000}}) {
    const Partition partition(shape, Layout::kNCHW, DType::bf16);
    ASSERT_EQ(partition.geometry(), Geometry::kPlane);
    const int64_t segments = partition.segments();
    for (int64_t i = 0; i + 1 < partition.panels() * segments; ++i) {
      const Piece piece = partition.piece(i / segments, i % segments),
                  after = partition.piece((i + 1) / segments, (i + 1) % segments);
      EXPECT_EQ(piece.offset + piece.block.next, after.offset) << "piece " << i << " of " << segments;
    }
  }
}

}  // namespace
}  // namespace palimpsest
