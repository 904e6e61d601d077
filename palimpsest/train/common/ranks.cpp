#include "palimpsest/train/common/ranks.h"

#include "palimpsest/base/random.h"
#include "palimpsest/nn/state_dict.h"
#include "palimpsest/train/common/require.h"
#include "palimpsest/train/optimizer_state.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kStart = "the state of the run";
constexpr const char* kGenerators = "the states of the generators";

Json json_of(const Step::State& s) {
  return {{"scale", s.scaler.scale},
          {"growth_tracker", s.scaler.growth_tracker},
          {"skipped_in_a_row", s.scaler.skipped_in_a_row},
          {"skipped_steps", s.skipped_steps},
          {"choose", s.choose}};
}

Step::State scaling_of(const Json& json) {
  Step::State s;
  s.scaler.scale = json.at("scale");
  s.scaler.growth_tracker = json.at("growth_tracker");
  s.scaler.skipped_in_a_row = json.at("skipped_in_a_row");
  s.skipped_steps = json.at("skipped_steps");
  s.choose = json.at("choose");
  return s;
}

/// Returns the states one after another. The states of one kind have one length.
std::string joined_states(const std::vector<GeneratorStates>& ranks, std::string GeneratorStates::* member) {
  std::string all;
  for (const GeneratorStates& states : ranks) all += states.*member;
  return all;
}

void split_states(const std::string& all, std::string GeneratorStates::* member,
                  std::vector<GeneratorStates>& ranks) {
  if (ranks.empty()) return;
  const std::size_t bytes = all.size() / ranks.size();
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i].*member = all.substr(i * bytes, bytes);
}

}  // namespace

uint64_t rank_seed(uint64_t seed, int64_t step, int rank) {
  if (rank == 0) return seed;
  return Random::stream(seed, static_cast<uint64_t>(step), static_cast<uint64_t>(rank)).next();
}

void share_state(distributed::Group& group, RunState& state) {
  Json json{{"step", state.step}, {"other_ranks", state.other_ranks.size()}};
  if (state.scaling) json["scaling"] = json_of(*state.scaling);
  json = Json::parse(group.broadcast_bytes(json.dump(), kStart));
  const std::string cpu =
      group.broadcast_bytes(joined_states(state.other_ranks, &GeneratorStates::cpu), kGenerators);
  const std::string gpu =
      group.broadcast_bytes(joined_states(state.other_ranks, &GeneratorStates::gpu), kGenerators);
  if (group.rank() == 0) return;
  state.step = json.at("step");
  state.scaling.reset();
  if (json.contains("scaling")) state.scaling = scaling_of(json["scaling"]);
  state.other_ranks.assign(json.at("other_ranks").get<std::size_t>(), {});
  split_states(cpu, &GeneratorStates::cpu, state.other_ranks);
  split_states(gpu, &GeneratorStates::gpu, state.other_ranks);
}

void share_optimizer_state(distributed::Group& group, torch::optim::Optimizer& optimizer,
                           const torch::nn::Module& module) {
  constexpr const char* kWhat = "the state of the optimizer";
  nn::StateDict state;
  Json list = Json::array();
  if (group.rank() == 0) {
    state = optimizer_state(optimizer, module);
    for (const auto& [name, tensor] : state)
      list.push_back({{"name", name},
                      {"shape", tensor.sizes().vec()},
                      {"dtype", static_cast<int>(tensor.scalar_type())},
                      {"on_cpu", tensor.is_cpu()}});
  }
  list = Json::parse(group.broadcast_bytes(list.dump(), kWhat));
  if (group.rank() != 0)
    for (const Json& entry : list) {
      const auto shape = entry.at("shape").get<std::vector<int64_t>>();
      const auto dtype = static_cast<at::ScalarType>(entry.at("dtype").get<int>());
      const c10::Device device =
          entry.at("on_cpu") ? c10::Device(c10::kCPU) : module.parameters().at(0).device();
      state.emplace_back(entry.at("name"), at::empty(shape, at::TensorOptions(dtype).device(device)));
    }
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : state) tensors.push_back(tensor);
  group.broadcast(tensors, kWhat);
  if (group.rank() == 0) return;
  nn::StateDictDiff diff;
  OptimizerStateLoader loader(optimizer, module, state, "", diff);
  require(diff.empty(), "the optimizer differs from that of rank 0: " + diff.text());
  loader.load();
}

void share_best(distributed::Group& group, BestState& state) {
  Json json{{"value", nullptr}, {"step", state.step}, {"evaluations_since", state.evaluations_since}};
  if (state.value) json["value"] = *state.value;
  json = Json::parse(group.broadcast_bytes(json.dump(), "the best evaluation"));
  state.value.reset();
  if (!json.at("value").is_null()) state.value = json["value"].get<double>();
  state.step = json.at("step");
  state.evaluations_since = json.at("evaluations_since");
}

std::vector<GeneratorStates> gather_generator_states(distributed::Group& group,
                                                     const torch::nn::Module& module) {
  const GeneratorStates mine = generator_states(module);
  const auto cpu = group.all_gather_bytes(mine.cpu, kGenerators);
  const auto gpu = group.all_gather_bytes(mine.gpu, kGenerators);
  std::vector<GeneratorStates> others;
  for (std::size_t rank = 1; rank < cpu.size(); ++rank) others.push_back({cpu[rank], gpu[rank]});
  return others;
}

}  // namespace palimpsest::train
