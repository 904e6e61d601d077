#include "palimpsest/cli/command_line.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/demo.h"
#include "palimpsest/cli/paper_rows.h"
#include "palimpsest/cli/reproduce.h"
#include "palimpsest/cli/resume.h"
#include "palimpsest/cli/settings.h"
#include "palimpsest/cli/weights_file.h"
#include "palimpsest/train/checkpoint.h"

#include <torch/version.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace palimpsest::cli {
namespace {

struct CommandInfo {
  Command command;
  const char* name;
  const char* help;
};

constexpr CommandInfo kCommands[] = {
    {Command::kTrain, "train", "train a network; checkpoint, log and configuration go to the output folder"},
    {Command::kEval, "eval", "print loss and metrics of a checkpoint over the validation images"},
    {Command::kPredict, "predict", "write colour pictures or print class names for images"},
    {Command::kInfo, "info", "list the layers of a model, and the memory that each strategy takes"},
    {Command::kCompare, "compare",
     "train the same network once per strategy and tabulate memory, time and accuracy"},
    {Command::kDemo, "demo", "run the comparison on generated scenes and write an HTML page with pictures"},
    {Command::kImport, "import",
     "convert weights of torchvision or inplace_abn to a file for eval, predict and train"},
    {Command::kExport, "export",
     "write a trained model's weights as a plain state dict, folded for inference on request"},
    {Command::kReproduce, "reproduce",
     "run a row of the papers' tables, or its shape at a size for two cores"},
    {Command::kData, "data", "check the folder of a data set: what was expected, and what is there"},
    {Command::kReport, "report", "write one HTML page about one run, or about several side by side"},
};

/// An argument without a flag. The help of eval names it CHECKPOINT.
struct Argument {
  unsigned commands;
  const char* name;
  const char* type;
  const char* help;
  bool required;
};

constexpr unsigned bits(std::initializer_list<Command> commands) {
  unsigned all = 0;
  for (const Command command : commands) all |= static_cast<unsigned>(command);
  return all;
}

constexpr const char* kCheckpointHelp = "checkpoint.safetensors of a training run, or the run's folder";
constexpr Argument kCheckpointArguments[] = {
    {bits({Command::kEval, Command::kPredict, Command::kExport}), "CHECKPOINT", "<file or folder>",
     kCheckpointHelp, true},
    {bits({Command::kInfo}), "CHECKPOINT", "<file or folder>", kCheckpointHelp, false},
    {bits({Command::kImport}), "FILE", "<file>", "state dict or checkpoint: .safetensors, .pth, .pt", true},
};
constexpr Argument kActionArgument{bits({Command::kData}), "ACTION", "<check>", "what to do: check", true};
constexpr Argument kFolderArgument{bits({Command::kData}), "PATH", "<folder>", "the folder of the data set",
                                   true};
constexpr Argument kImagesArgument{bits({Command::kPredict}), "IMAGE", "<file or folder>",
                                   "images, or folders of images", true};

constexpr Argument kRowArgument{bits({Command::kReproduce}), "ROW", "<name>",
                                "a row of the papers; --list names them", false};
constexpr Argument kRunsArgument{bits({Command::kReport}), "RUN", "<folder>", "output folders of trainings",
                                 true};

constexpr const char* kVersion = "palimpsest " PALIMPSEST_VERSION " (libtorch " TORCH_VERSION ")";

/// A flag as the user wrote it. It is applied after the files.
struct FlagValue {
  const Setting* setting;
  std::string text;

  std::string name() const {
    return (setting->is_switch() && text == "false" ? "--no-" : "--") + setting->flag;
  }
};

/// Returns the text in lines of at most `columns` characters, broken at spaces.
std::string wrapped(const std::string& text, std::size_t columns) {
  std::string lines;
  std::size_t begin = 0;  // of the last line
  for (std::size_t at = 0, end; at < text.size(); at = end + 1) {
    end = std::min(text.find(' ', at), text.size());
    if (at > 0) {
      const bool fits = lines.size() + 1 + end - at - begin <= columns;
      lines += fits ? ' ' : '\n';
      if (!fits) begin = lines.size();
    }
    lines.append(text, at, end - at);
  }
  return lines;
}

constexpr std::size_t kHelpColumn = 30, kHelpColumns = 100;

std::string help_of(const Setting& s) {
  std::string help = s.help;
  if (s.choices) {
    std::string names;
    for (const auto& name : s.choices()) names += (names.empty() ? "" : ", ") + name;
    help += " (" + names + ")";
  }
  if (!s.table.empty()) help += " [default: " + to_toml(get(Options{}, s)) + "]";
  return wrapped(help, kHelpColumns - kHelpColumn);
}

void add_flag(CLI::App& app, const Setting& s, std::vector<FlagValue>& given) {
  const std::string flag = "--" + s.flag;
  const std::string group = s.table.empty() ? "Options" : "[" + s.table + "]";
  if (!s.is_switch()) {
    app.add_option_function<std::string>(
           flag, [&given, &s](const std::string& text) { given.push_back({&s, text}); }, help_of(s))
        ->type_name(s.unit)
        ->take_last()
        ->group(group);
    return;
  }
  const auto add_switch = [&](const std::string& name, const char* value, const std::string& help) {
    return app.add_flag_function(
                  name, [&given, &s, value](int64_t) { given.push_back({&s, value}); }, help)
        ->group(group);
  };
  add_switch(flag, "true", help_of(s));
  if (s.has_opposite()) add_switch("--no-" + s.flag, "false", "switch it off");
}

void refuse_opposites(const std::vector<FlagValue>& flags) {
  std::set<const Setting*> on, off;
  for (const auto& [s, text] : flags)
    if (s->is_switch()) (text == "true" ? on : off).insert(s);
  for (const Setting* s : on)
    if (off.contains(s))
      throw Error(ErrorKind::kUsage, "--" + s->flag + " and --no-" + s->flag + " exclude each other");
}

bool is_flag_of(const Setting& s, const std::string& flag) {
  return flag == "--" + s.flag || (s.has_opposite() && flag == "--no-" + s.flag);
}

bool is_of_reproduce_alone(const Setting& s) {
  return s.commands == static_cast<unsigned>(Command::kReproduce);
}

/// Returns the flags of `command`, for suggestions.
std::vector<std::string> flag_names(Command command) {
  std::vector<std::string> names{"--help"};
  for (const Setting& s : settings()) {
    if (!s.taken_by(command)) continue;
    names.push_back("--" + s.flag);
    if (s.has_opposite()) names.push_back("--no-" + s.flag);
  }
  return names;
}

void refuse_unknown(const CLI::App& app, const CommandInfo& command) {
  for (const std::string& extra : app.remaining()) {
    if (extra == "--") continue;  // after it, an argument may begin with a dash
    if (!extra.starts_with('-'))
      throw Error(ErrorKind::kUsage, "unexpected argument '" + extra + "' for " + command.name);
    const std::string flag = extra.substr(0, extra.find('='));
    const auto known = flag_names(command.command);
    const std::string nearest = nearest_name(flag, known);
    const bool elsewhere = std::any_of(settings().begin(), settings().end(),
                                       [&](const Setting& s) { return is_flag_of(s, flag); });
    std::string message = elsewhere ? command.name + std::string(" does not use the option '") + flag + "'"
                                    : "unknown option '" + flag + "' for " + command.name;
    if (!elsewhere && !nearest.empty()) message += "; did you mean '" + nearest + "'?";
    if (command.command == Command::kInfo && flag == "--strategy") message += ": it shows every strategy";
    throw Error(ErrorKind::kUsage, message + " (palimpsest " + command.name + " --help lists all)");
  }
}

/// Returns the configuration in a checkpoint, as TOML; nothing if it holds none and a file names its model.
std::optional<std::string> stored_config(const std::string& checkpoint, bool has_file) {
  const auto metadata = train::read_checkpoint_metadata(checkpoint);
  const auto config = metadata.find("config");
  if (config == metadata.end() && has_file) return std::nullopt;
  if (config == metadata.end())
    throw Error(ErrorKind::kCheckpoint,
                checkpoint +
                    " holds no configuration: it was not written by palimpsest train; name its model with "
                    "--config FILE");
  return config->second;
}

/// Reads the configuration in a checkpoint. Where there is a file of --config, returns false for one that
/// cannot be read, such as that of a later version, and says so.
bool read_stored(Options& options, const std::string& text, const std::string& checkpoint,
                 const std::string& file) {
  Options read = options;
  try {
    read_stored_toml(read, text, name_of_stored(checkpoint));
  } catch (const Error& error) {
    if (file.empty()) throw;
    std::cerr << "palimpsest: " << printable(error.what()) << ": " << file << " alone describes the network"
              << std::endl;
    return false;
  }
  options = std::move(read);
  return true;
}

/// Refuses flags of the network: they would describe another one than the checkpoint's.
void refuse_stored(const std::vector<FlagValue>& flags, const std::string& checkpoint) {
  for (const FlagValue& flag : flags)
    if (flag.setting->table == "model")
      throw Error(ErrorKind::kUsage, flag.name() + " has no effect: the network is that of " + checkpoint +
                                         "; leave out one of them");
}

/// Reads the recipe that the command itself has.
void read_own_recipe(Options& options) {
  if (options.run.command == Command::kDemo) {
    read_toml(options, demo_config(), "palimpsest demo");
    options.given.clear();  // they are defaults of this command, not settings of the user
  }
  if (!options.run.row.empty()) read_row_recipe(options);
}

/// Makes `reproduce` the command that the row needs.
void become_train_or_compare(Options& options, const std::vector<FlagValue>& flags) {
  for (const FlagValue& flag : flags) {
    options.run.small = options.run.small || flag.setting->flag == "small";
    options.run.list = options.run.list || flag.setting->flag == "list";
  }
  options.run.command = options.run.small ? Command::kCompare : Command::kTrain;
  if (options.run.list) {
    for (const FlagValue& flag : flags)
      if (flag.setting->flag != "list")
        throw Error(ErrorKind::kUsage,
                    flag.name() + " has no effect with reproduce --list, which lists all rows: leave it out");
    return;
  }
  if (options.run.row.empty())
    throw Error(ErrorKind::kUsage,
                "reproduce needs the argument ROW: a row of the papers (palimpsest reproduce --list "
                "names all)");
  paper_row(options.run.row);
  for (const FlagValue& flag : flags) {
    if (flag.setting->flag == "config")
      throw Error(ErrorKind::kUsage,
                  "reproduce has the recipe of its row: leave out --config, or use palimpsest train "
                  "--config FILE");
    if (!flag.setting->taken_by(options.run.command) && !is_of_reproduce_alone(*flag.setting))
      throw Error(ErrorKind::kUsage,
                  std::string(options.run.small ? "reproduce --small" : "reproduce without --small") +
                      " does not use the option '" + flag.name() + "'");
  }
}

/// Lets eval build the network with another activation than that of its training, `trained`. A stored strategy
/// decides memory alone, so one that does not fit the activation gives way.
void exchange_activation(Options& options, const Options& trained) {
  if (activation_text(options) == activation_text(trained)) return;
  options.run.trained_activation = activation_text(trained);
  options.given.erase("model.strategy");
  options.given.erase("model.dense_strategy");
  options.model.dense_strategy = "auto";
}

/// The warm-up of a small row is a share of its epochs: with another --epochs, and no --warmup, it keeps that share.
void fit_warmup(Options& options, const Options& recipe) {
  const auto epochs = options.given.find("train.epochs"),
             warmup = options.given.find("schedule.warmup_epochs");
  const auto by_flag = [&](const auto& given) {
    return given != options.given.end() && given->second.starts_with("--");
  };
  if (by_flag(epochs) && !by_flag(warmup))
    options.schedule.warmup_epochs = small_warmup(recipe, options.train.epochs);
}

/// Checks the combinations. A contradiction within `stored`, the configuration in a checkpoint, is an error of the checkpoint.
void check_with_stored(const Options& options, const Options& before, const Options& stored,
                       const std::filesystem::path& checkpoint) {
  const auto complaint = [](const Options& checked, std::initializer_list<const Options*> earlier) {
    try {
      check_combinations(checked, earlier);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string text = complaint(options, {&stored, &before});
  if (text.empty()) return;
  Options alone = stored;
  complete_strategies(alone);
  if (complaint(alone, {&alone}) != text) throw Error(ErrorKind::kUsage, text);
  const std::string source = name_of_stored(checkpoint);
  throw Error(ErrorKind::kCheckpoint, text.starts_with(source) ? text : source + ": " + text);
}

/// Applies the files, then the flags, to the defaults in `options`.
void apply_sources(Options& options, const std::vector<FlagValue>& flags) {
  Options flags_alone;  // flags name the files
  for (const FlagValue& flag : flags) set_text(flags_alone, *flag.setting, flag.text, flag.name());
  const std::string config = flags_alone.run.config;
  const bool may_resume = flags_alone.run.resume || flags_alone.run.resume_if_possible;
  if (may_resume && flags_alone.output.folder.empty()) {  // a recipe names the folder, too
    if (!config.empty()) read_toml_file(flags_alone, config);
    if (!options.run.row.empty()) read_toml(flags_alone, row_recipe(options).text, row_recipe(options).name);
  }
  std::error_code ignored;
  if (flags_alone.run.resume_if_possible &&
      std::filesystem::exists(std::filesystem::path(flags_alone.output.folder) / train::kCheckpointFile,
                              ignored))
    flags_alone.run.resume = true;
  const bool resumes = flags_alone.run.resume && !flags_alone.output.folder.empty();

  // A run that continues has all its settings in its folder. The recipe would change those that the stored
  // configuration leaves out because they have their defaults.
  Options stored = options;
  const bool continues = resumes && read_resumed(stored, flags_alone.output.folder);
  if (continues) {
    options = stored;
    if (!options.run.row.empty()) options.output.folder = flags_alone.output.folder;
  } else {
    read_own_recipe(options);
    if (resumes) read_resumed(options, flags_alone.output.folder);
  }
  // import reads files of other programs.
  std::optional<std::string> in_checkpoint;
  if (!options.run.checkpoint.empty() && options.run.command != Command::kImport)
    in_checkpoint = stored_config(options.run.checkpoint, /*has_file=*/!config.empty());
  const bool is_stored =
      in_checkpoint && read_stored(options, *in_checkpoint, options.run.checkpoint, config);
  const Options resumed = options;
  if (!config.empty()) read_toml_file(options, config);
  const Options before = options;
  if (options.run.command == Command::kInfo && is_stored) refuse_stored(flags, options.run.checkpoint);
  for (const FlagValue& flag : flags) set_text(options, *flag.setting, flag.text, flag.name());
  options.run.resume = flags_alone.run.resume;
  if (options.run.small && !continues) fit_warmup(options, before);
  if (options.run.command == Command::kEval) exchange_activation(options, is_stored ? resumed : before);
  if (!is_stored && !continues) complete_activation(options);
  complete_strategies(options);
  if (continues) check_resumed(options, resumed);
  if (is_stored || continues)
    check_with_stored(options, before, resumed,
                      is_stored ? std::filesystem::path(options.run.checkpoint)
                                : std::filesystem::path(flags_alone.output.folder) / train::kCheckpointFile);
  else
    check_combinations(options, {&before});
}

template <class Value>
void add_argument(CLI::App& app, Command command, const Argument& argument, Value& value) {
  if ((argument.commands & static_cast<unsigned>(command)) == 0) return;
  app.add_option(argument.name, value, argument.help)->type_name(argument.type)->required(argument.required);
}

/// Returns the error of a command line that CLI11 refuses.
Error refusal(const CLI::App& app, const CLI::ParseError& failure) {
  const auto chosen = app.get_subcommands();
  if (chosen.empty())
    return {ErrorKind::kUsage, std::string(failure.what()) + " (palimpsest --help lists the commands)"};
  const std::string name = chosen.front()->get_name();
  const std::string way_out = " (palimpsest " + name + " --help explains it)";
  if (dynamic_cast<const CLI::RequiredError*>(&failure))
    for (const CLI::Option* option : chosen.front()->get_options())
      if (option->get_required() && option->count() == 0)
        return {ErrorKind::kUsage, fmt::format("{} needs the argument {}: {}{}", name, option->get_name(),
                                               option->get_description(), way_out)};
  return {ErrorKind::kUsage, failure.what() + way_out};
}

/// Refuses `--SWITCH=VALUE`, where CLI11 has rules of its own, and `--FLAG=`, where it would take the next
/// flag for the value.
void check_value(const std::string& argument) {
  const std::size_t equals = argument.find('=');
  if (!argument.starts_with("--") || equals == std::string::npos) return;
  const std::string flag = argument.substr(0, equals);
  const bool is_switch = flag == "--help" || flag == "--version" ||
                         std::any_of(settings().begin(), settings().end(),
                                     [&](const Setting& s) { return s.is_switch() && is_flag_of(s, flag); });
  if (is_switch)
    throw Error(ErrorKind::kUsage, flag + " takes no value, got '" + argument.substr(equals) + "'");
  if (equals + 1 == argument.size())
    throw Error(ErrorKind::kUsage,
                argument + " has no value: write " + flag + " VALUE, or \"\" for an empty text");
}

const CommandInfo& find_command(std::string_view name) {
  for (const CommandInfo& c : kCommands)
    if (name == c.name) return c;
  throw Error(ErrorKind::kUsage, unknown_name_message("command", name, command_names()));
}

}  // namespace

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const CommandInfo& c : kCommands) names.emplace_back(c.name);
  return names;
}

std::string_view to_string(Command command) {
  for (const CommandInfo& c : kCommands)
    if (c.command == command) return c.name;
  return "?";
}

Invocation parse_command_line(int argc, const char* const* argv) {
  Invocation invocation;
  Options& options = invocation.options;
  CLI::App app("Trains convolutional networks in a fraction of the memory, with exact gradients.",
               "palimpsest");
  app.set_help_flag("-h,--help", "print this help and stop");
  app.set_version_flag("-v,--version", kVersion, "print the version of the program and of libtorch");
  app.get_formatter()->column_width(kHelpColumn);
  app.require_subcommand(1);
  std::vector<FlagValue> flags;
  for (const CommandInfo& c : kCommands) {
    CLI::App* sub = app.add_subcommand(c.name, c.help);
    sub->allow_extras();
    for (const Argument& argument : kCheckpointArguments)
      add_argument(*sub, c.command, argument, options.run.checkpoint);
    add_argument(*sub, c.command, kImagesArgument, options.run.inputs);
    add_argument(*sub, c.command, kRowArgument, options.run.row);
    add_argument(*sub, c.command, kActionArgument, options.run.action);
    add_argument(*sub, c.command, kFolderArgument, options.run.folder);
    add_argument(*sub, c.command, kRunsArgument, options.run.inputs);
    for (const Setting& s : settings())
      if (s.taken_by(c.command)) add_flag(*sub, s, flags);
  }
  if (argc < 2) {
    std::string known;
    for (const auto& name : command_names()) known += (known.empty() ? "" : ", ") + name;
    throw Error(ErrorKind::kUsage, "a command is required: " + known + " (palimpsest --help explains them)");
  }
  const std::string_view first = argv[1];
  if (first == "version") {
    invocation.text = std::string(kVersion) + "\n";
    return invocation;
  }
  if (first == "help") {
    invocation.text =
        argc > 2 ? app.get_subcommand(find_command(argv[2]).name)->help(app.get_name()) : app.help();
    return invocation;
  }
  if (!first.starts_with('-')) find_command(first);  // its error has a suggestion, CLI11's has none
  if (first.starts_with('-') && first != "-h" && first != "--help" && first != "-v" && first != "--version")
    throw Error(ErrorKind::kUsage, "a command is required before '" + std::string(first) +
                                       "' (palimpsest --help lists the commands)");
  for (int i = 2; i < argc && std::string_view(argv[i]) != "--"; ++i) check_value(argv[i]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    invocation.text =
        dynamic_cast<const CLI::CallForVersion*>(&request) ? std::string(request.what()) + "\n" : app.help();
    return invocation;
  } catch (const CLI::ParseError& failure) {
    throw refusal(app, failure);
  }
  const CLI::App* sub = app.get_subcommands().front();
  const CommandInfo& command = find_command(sub->get_name());
  refuse_unknown(*sub, command);
  refuse_opposites(flags);
  options.run.command = command.command;
  if (command.command != Command::kImport) options.run.checkpoint = checkpoint_at(options.run.checkpoint);
  if (command.command == Command::kReproduce) {
    become_train_or_compare(options, flags);
    if (options.run.list) return invocation;
  }
  apply_sources(options, flags);
  return invocation;
}

}  // namespace palimpsest::cli
