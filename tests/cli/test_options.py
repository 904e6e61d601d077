"""Settings: one table behind files and flags, every mistake answered with file, line, key and the nearest name."""
import json
import re
import tomllib

import pytest

from cli_support import CHECKPOINT, ROOT, TINY, USAGE, fails, run, succeeds

COMMANDS = ("train", "eval", "predict", "info", "compare", "demo", "import", "export", "data", "report")


def effective(*arguments, cwd=None):
    return tomllib.loads(succeeds("train", *arguments, "--dry-run", cwd=cwd).stdout)


def toml(folder, text, name="recipe.toml"):
    (folder / name).write_text(text)
    return name


def flags_of(command):
    return set(re.findall(r"--[a-z][a-z-]*", succeeds(command, "--help").stdout))


def test_version_names_the_program_and_libtorch():
    assert re.match(r"palimpsest \d+\.\d+\.\d+ \(libtorch 2\.", succeeds("--version").stdout)


@pytest.mark.parametrize("arguments", [("-v",), ("version",)])
def test_other_words_for_version(arguments):
    assert succeeds(*arguments).stdout == succeeds("--version").stdout


def test_other_words_for_help():
    assert succeeds("help").stdout == succeeds("--help").stdout
    assert succeeds("help", "eval").stdout == succeeds("eval", "--help").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_fits_a_terminal_and_has_no_words_of_its_parser(command):
    text = succeeds(command, "--help").stdout
    assert max(map(len, text.splitlines())) <= 100
    assert "Excludes" not in text


def test_after_two_dashes_an_argument_may_begin_with_one(folder):
    fails(CHECKPOINT, "predict", "none.safetensors", "--", "-dash.png", cwd=folder, says=["none.safetensors"])
    fails(CHECKPOINT, "predict", "none.safetensors", "--output", "o", "--", "-dash.png", cwd=folder,
          says=["none.safetensors"])


def test_help_lists_every_command():
    text = succeeds("--help").stdout
    assert all(re.search(rf"^\s+{command}\s", text, re.M) for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_manual_mentions_every_flag_of_the_help(command):
    manual = (ROOT / "docs/cli.md").read_text()
    missing = {flag for flag in flags_of(command) if f"`{flag}" not in manual}
    assert not missing


def test_the_manual_says_of_each_setting_what_the_help_says():
    manual = (ROOT / "docs/cli.md").read_text()
    lines = []
    for line in succeeds("train", "--help").stdout.splitlines():
        # A long text is wrapped; a long name has the text in the next line.
        continues = line.startswith(" " * 30) and lines and re.match(r" {30}|  --\S.*?  +\S", lines[-1])
        lines[-1:] = [f"{lines[-1]} {line.strip()}"] if continues else [*lines[-1:], line]
    rows = re.findall(r"^\| `(--[a-z-]+)[^|]*\| `\w+` \| `([^|]*)` \| ([^|]*?) \|", manual, re.M)
    stated = {flag: (meaning, default) for flag, default, meaning in rows}
    # A setting is a line of the help, or two: its names fill the first one if they are long.
    shown = re.findall(r"^  (--[a-z-]+)(?: [^\n]*?)?(?:  +|\n {20,})(\S[^\n]*?)(?: \([a-z0-9_-]+(?:, [a-z0-9_-]+)+\))? \[default: (.*)\]$",
                       "\n".join(lines), re.M)
    assert len(shown) > 40
    assert {flag: stated.get(flag) for flag, *_ in shown} == {flag: tuple(rest) for flag, *rest in shown}


def test_every_value_in_the_help_has_a_unit():
    text = succeeds("train", "--help").stdout
    assert "--lr <per step>" in text and "--warmup <epochs>" in text
    assert not re.search(r" (TEXT|INT|FLOAT|UINT)\b", text)


def test_flags_override_the_file_which_overrides_the_defaults(folder):
    name = toml(folder, "[optimizer]\nlr = 0.5\nmomentum = 0.8\n")
    optimizer = effective("--config", name, "--momentum", "0.7", cwd=folder)["optimizer"]
    assert (optimizer["lr"], optimizer["momentum"], optimizer["weight_decay"]) == (0.5, 0.7, 1e-4)


OLD_WORDS = [("strategy", "inplace_1bit", "gelu"), ("strategy", "inplace", "leaky_relu")]


@pytest.mark.parametrize("key, word, activation", OLD_WORDS)
def test_another_word_for_a_strategy_is_read_wherever_a_user_may_have_it(folder, key, word, activation):
    """`inplace_1bit` is the old word for `inplace_bit`, `inplace` is short for `inplace_2`."""
    name = toml(folder, f'[model]\n{key} = "{word}"\nactivation = "{activation}"\n')
    assert effective("--config", name, cwd=folder)["model"][key] == word
    assert effective(f"--{key}", word, "--activation", activation)["model"][key] == word
    succeeds("compare", "--strategies", f"standard,{word}", "--activation", activation, "--dry-run")
    # The configuration of a checkpoint is read by eval, info and --resume.
    succeeds("train", *TINY, "--max-steps", "1", "--config", name, "--output", "run", cwd=folder)
    assert f'{key} = "{word}"' in (folder / "run/config.toml").read_text()
    succeeds("train", "--resume", "--max-steps", "2", "--output", "run", cwd=folder)
    succeeds("eval", "run/checkpoint.safetensors", cwd=folder)


def test_the_last_of_a_repeated_flag_counts():
    assert effective("--lr", "1", "--lr", "2")["optimizer"]["lr"] == 2


def test_the_printed_configuration_gives_itself_back(folder):
    first = succeeds("train", "--dry-run", "--schedule", "cosine", "--loss", "bootstrap", "--lr", "0.1", "--no-pad",
                     "--crop", "32", "--mean", "0.25,0.5,1", "--class-names", 'a,"b",\\c').stdout
    name = toml(folder, first)
    assert succeeds("train", "--dry-run", "--config", name, cwd=folder).stdout == first


def test_the_printed_configuration_leaves_out_what_has_no_effect():
    config = effective("--schedule", "cosine")
    assert "power" not in config["schedule"] and "final_lr" in config["schedule"]
    assert "root" not in config["data"]


def test_a_switch_of_a_file_can_be_switched_off(folder):
    name = toml(folder, "[train]\nchannels_last = true\n")
    assert effective("--config", name, cwd=folder)["train"]["channels_last"] is True
    assert effective("--config", name, "--no-channels-last", cwd=folder)["train"]["channels_last"] is False


@pytest.mark.parametrize("arguments, says", [
    ((), ["command"]),
    (("trian",), ["unknown command 'trian'", "did you mean 'train'"]),
    (("train", "--momentun", "0.9"), ["unknown option '--momentun'", "did you mean '--momentum'"]),
    (("train", "--json"), ["train does not use the option '--json'"]),
    (("train", "stray"), ["unexpected argument 'stray'"]),
    (("train", "--lr"), ["--lr"]),
    (("train", "--lr", "fast"), ["--lr must be a number in (0, 1e+30]", "'fast'"]),
    (("train", "--lr", "0.1x"), ["--lr must be a number in (0, 1e+30]", "'0.1x'"]),
    (("train", "--lr", "-1"), ["--lr must be a number in (0, 1e+30]", "-1"]),
    (("train", "--lr", "nan"), ["--lr must be a number in (0, 1e+30], got nan"]),
    (("train", "--lr", "inf"), ["--lr must be a number in (0, 1e+30], got inf"]),
    (("train", "--pad", "--no-pad"), ["--pad", "--no-pad"]),
    (("train", "--batch", "0"), ["--batch must be a whole number >= 1", "got 0"]),
    (("train", "--batch", "2.5"), ["--batch must be a whole number >= 1", "'2.5'"]),
    (("train", "--batch", "99999999999999999999"), ["--batch must be a whole number >= 1 that 64 bits hold", "got '99999999999999999999'"]),
    (("train", "--seed", "-99999999999999999999"), ["--seed must be a whole number >= 0 that 64 bits hold"]),
    (("train", "--lr", "1e39"), ["--lr must be a number in (0, 1e+30]", "got 1e+39"]),
    (("train", "--weight-decay", "1e308"), ["--weight-decay must be a number in [0, 1e+30]"]),
    (("train", "--final-lr", "1e308", "--schedule", "linear"), ["--final-lr must be a number in [0, 1e+30]"]),
    (("train", "--mean", "1e308,0,0"), ["--mean must be three numbers", "1e+06"]),
    (("train", "--std", "1e-300,1,1"), ["--std must be three numbers", "1e+06"]),
    (("train", "--batch-size", "2"), ["unknown option '--batch-size'", "did you mean '--batch'"]),
    (("train", "--no-lr"), ["unknown option '--no-lr'"]),
    (("train", "--lr", "1e999"), ["--lr must be a number", "that 64 bits hold", "got '1e999'"]),
    (("train", "--overwrite=false"), ["--overwrite takes no value, got '=false'"]),
    (("train", "--quiet=banana"), ["--quiet takes no value"]),
    (("train", "--no-pad=0"), ["--no-pad takes no value"]),
    (("train", "--dry-run="), ["--dry-run takes no value"]),
    (("train", "--help=abc"), ["--help takes no value"]),
    (("eval", "run", "--json=x"), ["--json takes no value"]),
    (("export", "run", "--overwrite=99999999999999999999"), ["--overwrite takes no value"]),
    (("train", "--classes", "2", "--class-names", "a,a"), ["--class-names", "'a' twice"]),
    (("train", "--loss", "bootstrap", "--model", "resnet18"), ["--loss has no effect", "resnet18", "or to be cross_entropy"]),
    (("train", "--dropout", "0.2", "--model", "resnet18"), ["--dropout has no effect", "densenet", "resnet18"]),
    (("train", "--dropout", "-0.5", "--model", "densenet121"), ["--dropout must be in [0, 1), or -1", "got -0.5"]),
    (("train", "--stochastic-depth", "0.2", "--model", "resnet18"), ["--stochastic-depth has no effect", "efficientnet", "resnet18"]),
    (("train", "--stochastic-depth", "-0.5", "--model", "efficientnet_b0"),
     ["--stochastic-depth must be in [0, 1), or -1", "got -0.5"]),
    (("train", "--stochastic-depth", "1", "--model", "efficientnet_b0"), ["--stochastic-depth", "got 1"]),
    (("train", "--no-pre-activation", "--model", "resnet18"), ["--no-pre-activation has no effect", "densenet", "resnet18"]),
    (("train", "--lr=", "--output", "run"), ["--lr= has no value: write --lr VALUE"]),
    (("train", "--config", "run/checkpoint.safetensors"), ["--config takes a TOML file", "--resume", "--weights"]),
    (("train", "--momentum", "1"), ["--momentum must be a number in [0, 1)", "got 1"]),
    (("train", "--crop", "16385"), ["--crop must be a whole number in [0, 16384]", "got 16385"]),
    (("train", "--eval-crop", "9223372036854775807"), ["--eval-crop must be a whole number in [0, 16384]"]),
    (("train", "--images", "10000001"), ["--images must be a whole number in [1, ", "got 10000001"]),
    (("train", "--val-images", "9223372036854775807"), ["--val-images must be a whole number in [1, "]),
    (("train", "--flip", "1.5"), ["--flip must be a number in [0, 1]", "got 1.5"]),
    (("train", "--mean", "1,2"), ["--mean must be three numbers", "'1,2'"]),
    (("train", "--std", "1,0,1"), ["--std must be three numbers (r, g, b) in [1e-06, 1e+06]"]),
    (("train", "--output-stride", "12"), ["--output-stride must be 8 or 16", "got 12"]),
    (("train", "--model", "deeplabv3_resnet81"), ["unknown model 'deeplabv3_resnet81'", "'deeplabv3_resnet18'"]),
    (("train", "--activation", "leaky_rleu"), ["unknown activation 'leaky_rleu'", "did you mean 'leaky_relu'"]),
    (("train", "--strategy", "inplce"), ["unknown strategy 'inplce'", "did you mean 'inplace'"]),
    (("train", "--schedule", "cosin"), ["unknown schedule 'cosin'", "did you mean 'cosine'"]),
    (("train", "--loss", "bootstrp"), ["unknown loss 'bootstrp'", "did you mean 'bootstrap'"]),
    (("train", "--data", "image_foldr"), ["unknown data 'image_foldr'", "did you mean 'image_folder'"]),
    (("train", "--dtype", "f23"), ["unknown dtype 'f23'", "f32"]),
    (("train", "--device", "gpu"), ["unknown device 'gpu'", "cpu", "cuda"]),
    (("train", "--device", "cuda:first"), ["unknown device 'cuda:first'", "cuda:0"]),
    (("train", "--device", "cuda:1"), ["device 'cuda:1'", "use cpu"]),
    *((command, ["device 'cuda'", "needs a build with kernels for GPUs", "make build PRESET=cuda", "or use cpu"])
      for command in (("train", "--device", "cuda"), ("compare", "--device", "cuda"), ("demo", "--device", "cuda"),
                      ("info", "--model", "resnet18", "--device", "cuda"))),
    (("compare", "--device", "cuda:128"), ["unknown device 'cuda:128'", "cuda:0"]),
    (("export", "--device", "cpu"), ["export does not use the option '--device'"]),
    (("train", "--slope", "2"), ["slope", "2"]),
    (("train", "--scale-min", "3", "--crop", "32"), ["--scale-min must be at most", "got 3"]),
    (("train", "--scale-max", "2"), ["--scale-max", "--crop"]),
    (("train", "--resume", "--overwrite"), ["--resume", "--overwrite"]),
    (("train", "--classes", "3", "--class-names", "a,b"), ["--class-names", "3", "2 names"]),
    (("train", "--config", "missing.toml"), ["missing.toml"]),
    (("train", "--resume", "--weights", "w.safetensors"), ["--weights", "--resume"]),
    (("eval",), ["eval needs the argument CHECKPOINT", "the run's folder", "palimpsest eval --help"]),
    (("predict",), ["predict needs the argument CHECKPOINT", "palimpsest predict --help"]),
    (("predict", "c.safetensors"), ["predict needs the argument IMAGE", "palimpsest predict --help"]),
    (("import",), ["import needs the argument FILE", ".pth"]),
    (("--json", "eval"), ["a command is required", "palimpsest --help"]),
    (("help", "evel"), ["unknown command 'evel'", "did you mean 'eval'"]),
    (("import", "w.pth", "--format", "torchvison"), ["unknown format 'torchvison'", "'torchvision'"]),
    (("import", "w.pth", "--lr", "1"), ["--lr", "import does not use the option"]),
    (("info", "--strategy", "inplace_2"), ["--strategy", "info", "it shows every strategy"]),
    (("export",), ["export needs the argument CHECKPOINT"]),
])
def test_a_wrong_command_line_is_named(arguments, says):
    dry = ("--dry-run",) if arguments[:1] == ("train",) else ()
    fails(USAGE, *arguments, *dry, says=says)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_a_number_that_is_none_is_shown_as_it_is(number):
    assert fails(USAGE, "train", f"--lr={number}", "--dry-run").endswith(f"got {number}")


def test_the_size_of_info_is_in_its_help():
    assert re.search(r"--size <pixels>[^-]*224 if not given", succeeds("info", "--help").stdout)


def test_a_value_may_end_with_an_equals_sign():
    said = succeeds("train", "--classes", "2", "--class-names=a,b=", "--dry-run").stdout
    assert 'class_names = ["a", "b="]' in said


@pytest.mark.parametrize("text, says", [
    ("[train]\nlr = 1\n", ["recipe.toml:2:", "unknown key of [train] 'lr'", "; a key of this name is in [optimizer]"]),
    ("[optimizer]\n\nlearning_rate = 1\n", ["recipe.toml:3:", "unknown key of [optimizer] 'learning_rate'"]),
    ("[optimizer]\nmomentun = 1\n", ["recipe.toml:2:", "'momentun'", "did you mean 'momentum'"]),
    ("[optimiser]\nlr = 1\n", ["recipe.toml:1:", "unknown table 'optimiser'", "did you mean 'optimizer'"]),
    ("lr = 1\n", ["recipe.toml:1:", "'lr'"]),
    ('[data]\nroot = "a\\u0000b"\n', ["recipe.toml:2: [data] root must not hold the character NUL", "a\\x00b"]),
    ("optimizer = 1\n", ["recipe.toml:1:", "optimizer must be a table", "1 (integer)"]),
    ("[optimizer]\nlr = \"fast\"\n", ["recipe.toml:2: [optimizer] lr must be a number in (0, 1e+30]", "fast", "string"]),
    ("[optimizer]\nlr = true\n", ["recipe.toml:2: [optimizer] lr must be a number in (0, 1e+30]", "true (boolean)"]),
    ("[optimizer]\nnesterov = 1\n", ["recipe.toml:2: [optimizer] nesterov must be true or false", "1 (integer)"]),
    ("[train]\nbatch = 8.0\n", ["recipe.toml:2: [train] batch must be a whole number >= 1", "8.0"]),
    ("[train]\nbatch = 0\n", ["recipe.toml:2: [train] batch must be a whole number >= 1", "got 0"]),
    ("[data]\nmean = [1, 2]\n", ["recipe.toml:2: [data] mean must be three numbers"]),
    ("[model]\nclass_names = [1]\n", ["recipe.toml:2: [model] class_names must be a list of texts"]),
    ("[model]\nname = \"resnet19\"\n", ["recipe.toml:2: [model] name", "'resnet19'", "resnet1"]),
    ("[optimizer]\nlr = \n", ["recipe.toml:2:"]),
    ("[optimizer]\nlr = 1\nlr = 2\n", ["recipe.toml:3:", "lr"]),
])
def test_a_wrong_file_is_named_with_line_and_key(folder, text, says):
    fails(USAGE, "train", "--dry-run", "--config", toml(folder, text), says=says, cwd=folder)


NO_EFFECT = [
    ("--schedule step --power 0.9", "power"),
    ("--step-epochs 3", "step-epochs"),
    ("--final-lr 0.1", "final-lr"),
    ("--bootstrap-share 0.5", "bootstrap-share"),
    ("--nesterov --momentum 0", "nesterov"),
    ("--optimizer adamw --momentum 0.9", "momentum"),
    ("--optimizer adamw --nesterov", "nesterov"),
    ("--beta1 0.8", "beta1"),
    ("--beta2 0.99", "beta2"),
    ("--eps 1e-6", "eps"),
    ("--patience 3", "patience"),
    ("--keep-best loss --evaluate-every 0", "keep-best"),
    ("--no-decay-bias --weight-decay 0", "no-decay-bias"),
    ("--sync-norm --freeze-norm", "sync-norm"),
    ("--model vgg16_cifar --data image_folder --freeze-norm", "freeze-norm"),
    ("--no-decay-norm --weight-decay 0", "no-decay-norm"),
    ("--model resnet18 --data image_folder --output-stride 8", "output-stride"),
    ("--activation identity --slope 0.1", "slope"),
    ("--data generated --data-root x", "data-root"),
    ("--data image_folder --model resnet18 --images 5", "images"),
    ("--workers 0 --prefetch 3", "prefetch"),
    ("--model resnet18_narrow --data cifar10 --bad-images skip", "bad-images"),
    ("--no-pad", "no-pad"),
    ("--reset-classifier", "reset-classifier"),
    ("--model alexnet_cifar --data image_folder --strategy store_y", "strategy"),
    ("--model vgg16_cifar --data image_folder --no-decay-norm", "no-decay-norm"),
]


@pytest.mark.parametrize("arguments, flag", NO_EFFECT)
def test_a_setting_without_effect_is_an_error_that_says_why(arguments, flag):
    fails(USAGE, "train", "--dry-run", *arguments.split(), says=[f"--{flag} has no effect", "it needs", "which is"])


def test_a_network_without_normalizations_has_one_strategy(folder):
    network = "--model googlenet_cifar_narrow --activation relu".split()
    assert effective(*network, "--data", "image_folder")["model"]["strategy"] == "standard"
    assert effective(*network, "--data", "image_folder", "--strategy", "standard")["model"]["strategy"] == "standard"
    described = json.loads(succeeds("info", *network, "--size", "32", "--json").stdout)
    assert [s["strategy"] for s in described["strategies"]] == ["standard"]
    fails(USAGE, "compare", *network, "--data", "image_folder", "--output", "run", cwd=folder,
          says=["--model must be a network with normalizations", "googlenet_cifar_narrow has none"])


def test_a_setting_without_effect_in_a_file_is_named_with_its_line(folder):
    name = toml(folder, "[schedule]\nkind = \"step\"\npower = 0.9\n")
    fails(USAGE, "train", "--dry-run", "--config", name, cwd=folder,
          says=["recipe.toml:3: [schedule] power has no effect", "poly", "which is step"])


def test_a_flag_may_make_a_setting_of_the_file_void(folder):
    name = toml(folder, "[schedule]\npower = 0.9\n")
    assert effective("--config", name, "--schedule", "constant", cwd=folder)["schedule"]["kind"] == "constant"


@pytest.mark.parametrize("recipe", sorted(str(path.relative_to(ROOT / "examples")) for path in (ROOT / "examples").rglob("*.toml")))
def test_every_recipe_is_a_configuration_and_names_no_machine(recipe):
    command = "demo" if recipe.startswith("demo") else "train"
    assert run(command, "--config", ROOT / "examples" / recipe, "--dry-run").returncode == 0
    assert not re.search(r'"/', (ROOT / "examples" / recipe).read_text()), "an absolute path"
