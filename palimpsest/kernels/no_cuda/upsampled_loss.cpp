#include "palimpsest/kernels/cuda/upsampled_loss.h"

#include "palimpsest/kernels/no_cuda/refuse.h"

// kernels/cuda/upsampled_loss.h for a build without CUDA.
namespace palimpsest::kernels::cuda {

int64_t upsampled_losses_workspace_bytes(const UpsampledProblem&) {
  refuse("upsampled_losses_workspace_bytes");
}
void upsampled_losses(const UpsampledProblem&, const void*, const CrossEntropyTargets&,
                      const CrossEntropyRules&, const uint8_t*, const UpsampledLosses&, Stream) {
  refuse("upsampled_losses");
}
void upsampled_gradient(const UpsampledProblem&, const void*, const CrossEntropyTargets&,
                        const CrossEntropyRules&, const uint8_t*, const double*, void*, Stream) {
  refuse("upsampled_gradient");
}
void upsampled_argmax(const UpsampledProblem&, const void*, int64_t*, Stream) {
  refuse("upsampled_argmax");
}

}  // namespace palimpsest::kernels::cuda
