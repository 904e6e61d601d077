#include "palimpsest/kernels/abn.h"

#include <cmath>
#include <vector>

// The truth of the tests: one plain loop per formula, all maths in double, rounded once where a value is
// stored.
namespace palimpsest::kernels::reference {
namespace {

int64_t index(const AbnLayer& layer, int64_t n, int64_t c, int64_t s) {
  const Shape3& shape = layer.shape;
  return layer.layout == Layout::kNCHW ? (n * shape.c + c) * shape.s + s : (n * shape.s + s) * shape.c + c;
}

// Calls function(i) with the index of every element of channel c.
template <class Function>
void for_each(const AbnLayer& layer, int64_t c, const Function& function) {
  for (int64_t n = 0; n < layer.shape.n; ++n)
    for (int64_t s = 0; s < layer.shape.s; ++s) function(index(layer, n, c, s));
}

struct Moments {
  double mean, var;
};

template <class T>
Moments moments(const AbnLayer& layer, int64_t c, const T* x) {
  const double m = static_cast<double>(layer.shape.per_channel());
  double sum = 0, squares = 0;
  for_each(layer, c, [&](int64_t i) { sum += x[i]; });
  const double mean = sum / m;
  for_each(layer, c, [&](int64_t i) { squares += (x[i] - mean) * (x[i] - mean); });
  return {mean, squares / m};
}

template <class T>
void apply_channel(const AbnLayer& layer, int64_t c, const T* x, double mean, double inv_std, double weight,
                   double bias, T* z, T* xhat) {
  dispatch_activation<double>(layer.activation, layer.activation_param, [&](auto act) {
    for_each(layer, c, [&](int64_t i) {
      const double normalized = (x[i] - mean) * inv_std;
      if (xhat) xhat[i] = static_cast<T>(normalized);
      z[i] = static_cast<T>(act.forward(weight * normalized + bias));
    });
  });
}

// Calls function(i, dy, xhat) for every element of channel c, with what its backward is made of.
template <class T, class Function>
void for_each_gradient(const AbnLayer& layer, int64_t c, const T* z, const T* xhat, const T* dz,
                       double weight, double bias, const Function& function) {
  dispatch_activation<double>(layer.activation, layer.activation_param, [&](auto act) {
    for_each(layer, c, [&](int64_t i) {
      const double zi = z[i];
      const double normalized = xhat ? static_cast<double>(xhat[i]) : (act.inverse(zi) - bias) / weight;
      function(i, dz[i] * act.derivative(zi), normalized);
    });
  });
}

struct Sums {
  double dy = 0, dy_xhat = 0;
};

template <class T>
Sums reduce_channel(const AbnLayer& layer, int64_t c, const T* z, const T* xhat, const T* dz, double weight,
                    double bias) {
  Sums sums;
  for_each_gradient(layer, c, z, xhat, dz, weight, bias, [&](int64_t, double dy, double normalized) {
    sums.dy += dy;
    sums.dy_xhat += dy * normalized;
  });
  return sums;
}

template <class T>
void backward_apply_channel(const AbnLayer& layer, int64_t c, const T* z, const T* xhat, const T* dz,
                            double weight, double bias, double inv_std, Sums sums, double m, T* dx) {
  for_each_gradient(layer, c, z, xhat, dz, weight, bias, [&](int64_t i, double dy, double normalized) {
    dx[i] = static_cast<T>(weight * inv_std * (dy - sums.dy / m - normalized * sums.dy_xhat / m));
  });
}

// The value of channel c of a parameter that may be absent.
template <class A>
double value_or(const void* parameter, int64_t c, double absent) {
  return parameter ? static_cast<double>(static_cast<const A*>(parameter)[c]) : absent;
}

}  // namespace

void abn_statistics(const AbnLayer& layer, const void* x, void* mean, void* var) {
  dispatch_float(layer.dtype, [&]<class T>() {
    using A = accumulate_t<T>;
    for (int64_t c = 0; c < layer.shape.c; ++c) {
      const Moments of_x = moments(layer, c, static_cast<const T*>(x));
      static_cast<A*>(mean)[c] = static_cast<A>(of_x.mean);
      static_cast<A*>(var)[c] = static_cast<A>(of_x.var);
    }
  });
}

void abn_apply(const AbnLayer& layer, const void* x, const void* mean, const void* inv_std,
               const void* weight, const void* bias, void* z, void* xhat) {
  dispatch_float(layer.dtype, [&]<class T>() {
    using A = accumulate_t<T>;
    for (int64_t c = 0; c < layer.shape.c; ++c) {
      apply_channel(layer, c, static_cast<const T*>(x), static_cast<const A*>(mean)[c],
                    static_cast<const A*>(inv_std)[c], value_or<A>(weight, c, 1), value_or<A>(bias, c, 0),
                    static_cast<T*>(z), static_cast<T*>(xhat));
    }
  });
}

void abn_forward(const AbnLayer& layer, double eps, const void* x, const void* weight, const void* bias,
                 void* z, void* xhat, void* mean, void* var, void* inv_std) {
  dispatch_float(layer.dtype, [&]<class T>() {
    using A = accumulate_t<T>;
    for (int64_t c = 0; c < layer.shape.c; ++c) {
      const Moments of_x = moments(layer, c, static_cast<const T*>(x));
      const double r = 1 / std::sqrt(of_x.var + eps);
      static_cast<A*>(mean)[c] = static_cast<A>(of_x.mean);
      static_cast<A*>(var)[c] = static_cast<A>(of_x.var);
      static_cast<A*>(inv_std)[c] = static_cast<A>(r);
      apply_channel(layer, c, static_cast<const T*>(x), of_x.mean, r, value_or<A>(weight, c, 1),
                    value_or<A>(bias, c, 0), static_cast<T*>(z), static_cast<T*>(xhat));
    }
  });
}

void abn_backward_reduce(const AbnLayer& layer, const void* z, const void* xhat, const void* dz,
                         const void* weight, const void* bias, void* sum_dy, void* sum_dy_xhat) {
  dispatch_float(layer.dtype, [&]<class T>() {
    using A = accumulate_t<T>;
    for (int64_t c = 0; c < layer.shape.c; ++c) {
      const Sums sums =
          reduce_channel(layer, c, static_cast<const T*>(z), static_cast<const T*>(xhat),
                         static_cast<const T*>(dz), value_or<A>(weight, c, 1), value_or<A>(bias, c, 0));
      static_cast<A*>(sum_dy)[c] = static_cast<A>(sums.dy);
      static_cast<A*>(sum_dy_xhat)[c] = static_cast<A>(sums.dy_xhat);
    }
  });
}

void abn_backward_apply(const AbnLayer& layer, const void* z, const void* xhat, const void* dz,
                        const void* weight, const void* bias, const void* inv_std, const void* sum_dy,
                        const void* sum_dy_xhat, double m, void* dx) {
  dispatch_float(layer.dtype, [&]<class T>() {
    using A = accumulate_t<T>;
    for (int64_t c = 0; c < layer.shape.c; ++c) {
      const double w = value_or<A>(weight, c, 1), r = static_cast<const A*>(inv_std)[c];
      const T* z_in = static_cast<const T*>(z);
      const T* dz_in = static_cast<const T*>(dz);
      if (!sum_dy || !sum_dy_xhat) {  // frozen statistics: a scale and a shift, x-hat plays no part
        dispatch_activation<double>(layer.activation, layer.activation_param, [&](auto act) {
          for_each(layer, c, [&](int64_t i) {
            static_cast<T*>(dx)[i] =
                static_cast<T>(w * r * dz_in[i] * act.derivative(static_cast<double>(z_in[i])));
          });
        });
        continue;
      }
      const Sums sums{static_cast<const A*>(sum_dy)[c], static_cast<const A*>(sum_dy_xhat)[c]};
      backward_apply_channel(layer, c, z_in, static_cast<const T*>(xhat), dz_in, w, value_or<A>(bias, c, 0),
                             r, sums, m, static_cast<T*>(dx));
    }
  });
}

void abn_backward(const AbnLayer& layer, const void* z, const void* xhat, const void* dz, const void* weight,
                  const void* bias, const void* inv_std, void* sum_dy, void* sum_dy_xhat, void* dx) {
  abn_backward_reduce(layer, z, xhat, dz, weight, bias, sum_dy, sum_dy_xhat);
  abn_backward_apply(layer, z, xhat, dz, weight, bias, inv_std, sum_dy, sum_dy_xhat,
                     static_cast<double>(layer.shape.per_channel()), dx);
}

}  // namespace palimpsest::kernels::reference
