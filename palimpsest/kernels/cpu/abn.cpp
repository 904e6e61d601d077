#include "palimpsest/kernels/abn.h"

namespace palimpsest::kernels::cpu {

void abn_statistics(const AbnLayer& layer, const void* x, void* mean, void* var) {
  reference::abn_statistics(layer, x, mean, var);
}
void abn_apply(const AbnLayer& layer, const void* x, const void* mean, const void* inv_std,
               const void* weight, const void* bias, void* z, void* xhat) {
  reference::abn_apply(layer, x, mean, inv_std, weight, bias, z, xhat);
}
void abn_forward(const AbnLayer& layer, double eps, const void* x, const void* weight, const void* bias,
                 void* z, void* xhat, void* mean, void* var, void* inv_std) {
  reference::abn_forward(layer, eps, x, weight, bias, z, xhat, mean, var, inv_std);
}
void abn_backward_reduce(const AbnLayer& layer, const void* z, const void* xhat, const void* dz,
                         const void* weight, const void* bias, void* sum_dy, void* sum_dy_xhat) {
  reference::abn_backward_reduce(layer, z, xhat, dz, weight, bias, sum_dy, sum_dy_xhat);
}
void abn_backward_apply(const AbnLayer& layer, const void* z, const void* xhat, const void* dz,
                        const void* weight, const void* bias, const void* inv_std, const void* sum_dy,
                        const void* sum_dy_xhat, double m, void* dx) {
  reference::abn_backward_apply(layer, z, xhat, dz, weight, bias, inv_std, sum_dy, sum_dy_xhat, m, dx);
}
void abn_backward(const AbnLayer& layer, const void* z, const void* xhat, const void* dz, const void* weight,
                  const void* bias, const void* inv_std, void* sum_dy, void* sum_dy_xhat, void* dx) {
  reference::abn_backward(layer, z, xhat, dz, weight, bias, inv_std, sum_dy, sum_dy_xhat, dx);
}
const char* instruction_set() {
  return "native";
}

}  // namespace palimpsest::kernels::cpu
