#include "palimpsest/data/dataset.h"

#include <numeric>
#include <utility>

namespace palimpsest::data {

std::vector<int64_t> Dataset::shuffled(Random& random, int64_t /*batch_size*/) const {
  std::vector<int64_t> order(size());
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = static_cast<int64_t>(order.size()) - 1; i > 0; --i)
    std::swap(order[i], order[random.below(i + 1)]);
  return order;
}

}  // namespace palimpsest::data
