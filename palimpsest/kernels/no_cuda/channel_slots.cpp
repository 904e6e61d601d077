#include "palimpsest/kernels/cuda/channel_slots.h"

#include "palimpsest/kernels/no_cuda/refuse.h"

// kernels/cuda/channel_slots.h for a build without CUDA.
namespace palimpsest::kernels::cuda {

int64_t choose_slots_workspace_bytes(const AbnProblem&) {
  refuse("choose_slots_workspace_bytes");
}
void choose_slots(const AbnProblem&, const ChannelSlots&, const Queue&) {
  refuse("choose_slots");
}
void gather_channels(const AbnProblem&, const int64_t*, int64_t, const void*, void*, Stream) {
  refuse("gather_channels");
}
void scatter_channels(const AbnProblem&, const int64_t*, int64_t, const void*, void*, Stream) {
  refuse("scatter_channels");
}

}  // namespace palimpsest::kernels::cuda
