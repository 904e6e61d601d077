"""A wrong call of memory::recompute is one compiler error of at most ten lines, which says why."""

import os
import shlex
import subprocess

PRELUDE = """
#include "palimpsest/memory/recompute.h"

#include <memory>
#include <tuple>

using palimpsest::memory::recompute;

struct Module {  // stands for torch::nn::Module, whose header takes 15 s
  virtual ~Module() = default;
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};
struct Gru {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, at::Tensor state = {}) { return {x, state}; }
};
at::Tensor same(const at::Tensor& x) { return x; }

void calls(Module& module, std::shared_ptr<Module> pointer, std::shared_ptr<Gru> gru, at::Tensor x) {
  at::Tensor y = recompute(pointer, x, {.buffers = {x}});  // right
"""
INPUTS = "needs fn, then tensors or one std::vector of tensors, then the options"
FN = "fn must be copyable and callable with the inputs"
WRONG = [
    ("y = recompute(module, x);", FN),
    ("y = recompute(same, x, x);", FN),
    ("y = recompute([p = std::make_unique<int>(1)](const at::Tensor& t) { return t; }, x);", FN),
    ("auto z = recompute(gru, x);", "fn must return a tensor or a std::vector of tensors"),
    ("auto z = recompute([](const at::Tensor&) {}, x);", "fn must return a tensor or a std::vector of tensors"),
    ("auto z = recompute(same);", INPUTS),
    ("y = recompute(same, 3);", INPUTS),
    ("y = recompute(same, x, x, x, x, palimpsest::memory::RecomputeOptions{});", INPUTS),
]


def test_each_wrong_call_says_why_in_ten_lines(tmp_path):
    source = tmp_path / "calls.cpp"  # one for all, because the header takes 2 s
    source.write_text(PRELUDE + "".join(f"  {{ {call} }}\n" for call, _ in WRONG) + "}\n")
    run = subprocess.run([*shlex.split(os.environ["PALIMPSEST_COMPILE"]), source], capture_output=True, text=True)
    errors = [line for line in run.stderr.splitlines() if "error:" in line]
    assert len(errors) == len(WRONG), run.stderr
    for _, reason in WRONG:
        assert sum(reason in line for line in errors) == sum(reason == other for _, other in WRONG), run.stderr
    assert len(run.stderr.splitlines()) <= 10 * len(WRONG), run.stderr
