"""A wrong call of the public face is one compiler error, of at most ten lines, which says why."""

import os
import shlex
import subprocess

PRELUDE = """
#include <palimpsest/palimpsest.h>
#include <torch/nn/modules/rnn.h>

#include <string>

using namespace palimpsest;

void calls() {
  const auto net = models::make("resnet50");  // right, and so are these
  models::make("resnet50", {.classes = 10, .strategy = nn::Strategy::kStoreY});
  nn::BatchNormAct norm(32);
  nn::Norm short_name(32);
  nn::InPlaceABN abn(32);
  nn::BatchNormAct(nn::BatchNormActOptions(32).strategy(nn::Strategy::kStoreY).activation(nn::Activation::kReLU));
  nn::DenseBlock(nn::DenseBlockOptions(16));
  const ops::ConvolutionOptions options;
"""
WRONG = [
    ("nn::BatchNormActOptions(32).activation(torch::kReLU);", "e.g. nn::Activation::kReLU"),
    ('nn::BatchNormActOptions(32).strategy("store_y");', 'nn::parse_strategy("store_y")'),
    ('models::make("resnet50", 10);', "ModelOptions"),
    ('models::make("resnet50", {.klasses = 10});', "ModelOptions"),
    ('models::make("resnet50", {.classes = 10})(torch::randn({2, 3, 32, 32}));', "no match for call to"),
    ("net->replace_classifier(torch::nn::LSTM(3, 4));", "must take one tensor and return one"),
    ("nn::DenseBlockOptions(16).dense_strategy(3);", "dense_strategy"),
]


def test_each_wrong_call_says_why_in_ten_lines(tmp_path):
    source = tmp_path / "calls.cpp"  # one for all, because the headers take seconds
    source.write_text(PRELUDE + "".join(f"  {{ {call} }}\n" for call, _ in WRONG) + "}\n")
    run = subprocess.run([*shlex.split(os.environ["PALIMPSEST_COMPILE"]), source], capture_output=True, text=True)
    errors = [line for line in run.stderr.splitlines() if "error:" in line]
    assert len(errors) == len(WRONG), run.stderr
    for call, reason in WRONG:
        assert any(reason in line for line in errors), f"{call}: no '{reason}' in\n{run.stderr}"
    assert len(run.stderr.splitlines()) <= 10 * len(WRONG), run.stderr
