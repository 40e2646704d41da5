"""Configuration from preset, YAML and flags; exit codes and status.json."""

import ast
import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest
from bert_repro.cli.suggestions import IN_FILES

import bert_repro
from bert_repro import cli, configs
from bert_repro.configs import GlueConfig, Phase, PretrainingConfig, SquadConfig
from bert_repro.errors import NonFiniteError, StopRequested, UserError
from bert_repro.recipes import RECIPES, Recipe, help_text

GLUE = ["--model_name_or_path", "m", "--do_eval"]


def test_flags_win_over_yaml_over_defaults_as_transformers_users_write_them(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("learning_rate: 3e-5\nseed: 7\nmax_steps: 10\n")
    config = cli.parse(GlueConfig, [*GLUE, "--config", str(file), "--seed", "8"])
    assert (config.learning_rate, config.seed, config.max_steps, config.num_train_epochs) == (3e-5, 8, 10, 3.0)
    assert cli.parse(GlueConfig, [*GLUE, "--do_train"]).do_train
    assert not cli.parse(GlueConfig, [*GLUE, "--packing", "false"]).packing
    config = cli.parse(GlueConfig, [*GLUE, "--learning-rate=1e-4", "--data-dir", "my-data_dir", "--do-train"])
    assert (config.learning_rate, config.data_dir, config.do_train) == (1e-4, "my-data_dir", True)
    file.write_text(
        "phases:\n- {max_seq_length: 128, steps: 9, batch: 4}\n- {max_seq_length: 512, steps: 1, batch: 4}\n"
    )
    assert cli.parse(PretrainingConfig, ["--config", str(file)]).phases == (Phase(128, 9, 4), Phase(512, 1, 4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learnin_rate", "1"], "unknown flag --learnin_rate; did you mean --learning_rate?"),
        (["--learning_rate", "fast"], "--learning_rate: invalid float value: 'fast'"),
        (["--decay_from", "end"], "--decay_from is 'end'; it must be one of: start, warmup_end"),
        (["--warmup_ratio", "2"], "--warmup_ratio is 2.0; it must lie in [0, 1]"),
        (["--max_steps", "0"], "--max_steps is 0; it must be positive"),
        (["--num_train_epochs", "inf"], "--num_train_epochs is inf; it must be a finite number"),
        (["--sweep_num_train_epochs", "3", "inf"], "--sweep_num_train_epochs is inf; it must be a finite number"),
        (["--weight_decay", "nan"], "--weight_decay is nan; it must be a finite number"),
        (["--max_grad_norm", "nan"], "--max_grad_norm is nan; it must be a finite number"),
        (["--weight_decay", "-1"], "--weight_decay is -1.0; it must not be negative"),
        (["--max_grad_norm", "-1"], "--max_grad_norm is -1.0; it must not be negative"),
        (["--warmup_steps", "-5"], "--warmup_steps is -5; it must be at least 0 and at most 1,000,000,000"),
        (["--learning_rate", "-1"], "--learning_rate is -1.0; it must not be negative"),
        (["--adam_epsilon", "0"], "--adam_epsilon is 0.0; it must be positive"),
        (["--adam_epsilon", "-1"], "--adam_epsilon is -1.0; it must be positive"),
        (["--seed", "1", "stray"], "'stray' is not expected here"),
        (["--seed", "-1"], "--seed is -1; it must be at least 0 and at most 4,294,967,295"),
        (["--max_seq_length", "0"], "--max_seq_length is 0; it must be at least 8 and at most 65,536"),
        (["--per_device_eval_batch_size", "10000000000000"], "it must be positive and at most 1,000,000"),
        (["--seed", "9" * 70], "9999...; it must be at least 0 and at most"),
        (["--seed", "9" * 5000], "invalid int value: '999"),
        (["--sweep_batch_sizes", "8", "0"], "--sweep_batch_sizes is 0; it must be positive"),
        (["--dataloader_num_workers", "-1"], "--dataloader_num_workers is -1; it must be at least 0"),
        (["--fp16"], "unknown flag --fp16; write --mixed_precision fp16"),
        (["--corpus", "x"], "unknown flag --corpus; see --help"),
        (
            ["--lr", "-1e-4", "--packing", "false", "--device=cpu", "--batch-size", "8", "--learnin_rate", "1"],
            "unknown flags: --lr (write --learning_rate), --device (leave it out: the GPU is used where there is one; "
            "CUDA_VISIBLE_DEVICES= (empty) for the CPU), --batch-size (write --train_batch_size (over all devices) or "
            "--per_device_train_batch_size), --learnin_rate (did you mean --learning_rate?)",
        ),
        (["--packing", "maybe"], "'maybe' is not true or false"),
        (["--config", "nowhere.yaml"], "--config nowhere.yaml: cannot be read"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as raised:
        cli.parse(GlueConfig, [*GLUE, *arguments])
    assert message in str(raised.value)


@pytest.mark.parametrize("arguments", [["--phases", "32x100x8"], ["--phases=[]"], ["--phase", "128"]])
def test_settings_without_a_flag_are_answered_with_the_line_of_a_file(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(UserError, match=r"^unknown flag --phases?; phases are set in a YAML file: --config") as raised:
        cli.parse(PretrainingConfig, arguments)
    file = tmp_path / "run.yaml"
    file.write_text(str(raised.value).partition("such as ")[2])
    assert cli.parse(PretrainingConfig, ["--config", str(file)]).phases == (Phase(128, 900, 32), Phase(512, 100, 32))


def test_every_setting_has_a_flag_or_an_answer_that_says_where_it_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    for recipe in RECIPES.values():
        with pytest.raises(SystemExit):
            cli.parse(recipe.config, ["--help"])
        flags = set(re.findall(r"--(\w+)", capsys.readouterr().out))
        assert {item.name for item in dataclasses.fields(recipe.config)} - flags <= set(IN_FILES)


def test_what_is_missing_or_not_finite_is_named() -> None:
    for config_class in (configs.PushConfig, configs.TriviaqaConfig, configs.CorpusConfig, GlueConfig):
        first = next(item for item in dataclasses.fields(config_class) if item.metadata["required"])
        with pytest.raises(UserError, match=f"^--{first.name} is missing; name "):
            cli.parse(config_class, [])
    with pytest.raises(UserError, match=r"--null_score_diff_threshold is nan; it must be a finite number"):
        cli.parse(SquadConfig, [*GLUE, "--null_score_diff_threshold", "nan"])
    with pytest.raises(UserError, match=r"--initializer_range is inf; it must be a finite number"):
        cli.parse(PretrainingConfig, ["--initializer_range", "inf"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learnin_rate: 1", "unknown setting 'learnin_rate'; did you mean learning_rate?"),
        ("seed: many", "seed: 'many' is not of type int"),
        ("do_eval: 3", "do_eval: 3 is not of type bool"),
        ("- 1", "holds no mapping"),
        ("seed: 1\nseed: 2", "line 2: 'seed' is given twice"),
        ("seed: &s 1\nmax_steps: *s", "line 2: aliases are not accepted"),
        ("seed: " + "9" * 5000, "is not valid YAML"),
        ("seed: !!python/object:os.system x", "is not valid YAML"),
        ("a: " + "[" * 5000, "is not valid YAML"),
        ("a: [", "is not valid YAML"),
        ("num_train_epochs: " + "9" * 400, "is not of type float"),
        ('output_dir: "a\\0b"', "must not hold a null character"),
        ("a line of a corpus\n" * 60_000, "is larger than 1,000,000 bytes"),
    ],
)
def test_wrong_yaml_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=r"^[^\n]*$") as raised:
        cli.parse(GlueConfig, [*GLUE, "--config", str(file)])
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ("32x100x8", "'32x100x8' does not fit; write a mapping of max_seq_length, steps, batch"),
        ("[{length: 32, steps: 9, batch: 8}]", "does not fit; write a mapping of max_seq_length, steps, batch"),
        ("[{max_seq_length: 32, steps: 9}]", "does not fit; write a mapping of max_seq_length, steps, batch"),
        ("[{max_seq_length: 32, steps: 1e3, batch: 8}]", "phases: steps: '1e3' is not of type int"),
    ],
)
def test_wrong_phases_are_named(tmp_path: Path, phases: str, message: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"phases: {phases}")
    with pytest.raises(UserError, match=r"^[^\n]*$") as raised:
        cli.parse(PretrainingConfig, ["--config", str(file)])
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["runs/mrpc", "./mrpc", "/nowhere/mrpc", "a/b/c", "mrpc/", f"./{'n' * 300}"])
def test_a_model_that_looks_like_a_folder_and_is_none_is_refused_at_once(name: str, tmp_path: Path) -> None:
    config = GlueConfig(model_name_or_path=name, do_eval=True, output_dir=str(tmp_path / "run"))
    with pytest.raises(UserError, match=f"^--model_name_or_path {name}: no such folder; name the output folder of a "):
        RECIPES["run_glue"].run(config)


def run_main(monkeypatch: pytest.MonkeyPatch, output_dir: Path, error: BaseException | None) -> int:
    def recipe(config: object) -> None:
        if error:
            raise error

    monkeypatch.setattr(Recipe, "load", lambda self: recipe)
    with pytest.raises(SystemExit) as raised:
        cli.main("run_glue", argv=[*GLUE, "--output_dir", str(output_dir)])
    return int(raised.value.code or 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (UserError("wrong"), 2),
        (NonFiniteError("nan"), 3),
        (StopRequested(15), 143),
        (RuntimeError("bug"), 1),
    ],
)
def test_exit_codes_and_status(monkeypatch, tmp_path, error, code):
    assert run_main(monkeypatch, tmp_path / "run", error) == code
    assert json.loads((tmp_path / "run" / "status.json").read_text())["code"] == code


def test_a_refused_run_is_one_line_and_leaves_the_record_of_an_earlier_one(monkeypatch, tmp_path, capsys):
    (tmp_path / "results.json").write_text("{}")
    (tmp_path / "status.json").write_text('{"code": 0}')
    assert run_main(monkeypatch, tmp_path, UserError("not empty")) == 2
    assert json.loads((tmp_path / "status.json").read_text()) == {"code": 0}
    capsys.readouterr()
    run_main(monkeypatch, tmp_path / "run", UserError("the file is\nwrong"))
    assert capsys.readouterr().err == "error: the file is wrong\n"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_run_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, function = RECIPES[name].function.split(":")
    tree = ast.parse(Path(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8"))
    assert function in {item.name for item in tree.body if isinstance(item, ast.FunctionDef)}
    assert max(len(line) for typed in (name, None) for line in help_text(name, typed).splitlines()) <= 79
    assert len(RECIPES[name].summary) <= 54, "bert-repro --help is 80 columns wide"


def console(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["bert-repro", *arguments])
    with pytest.raises(SystemExit) as raised:
        cli.console()
    return int(raised.value.code or 0)


def test_the_console_lists_recipes_and_its_version_and_suggests_a_recipe(monkeypatch, capsys):
    assert console(monkeypatch, "--help") == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in RECIPES)
    assert console(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"bert-repro {bert_repro.__version__}\n"
    assert console(monkeypatch, "run-gleu") == 2
    assert capsys.readouterr().err == "error: there is no recipe 'run-gleu'; did you mean run_glue?\n"


def test_files_alone_say_what_to_do_and_short_names_reach_the_recipe(monkeypatch, tmp_path):
    seen: list[GlueConfig] = []
    monkeypatch.setattr(Recipe, "load", lambda self: seen.append)
    flags = ["--model_name_or_path", "m", "--output_dir", str(tmp_path / "out")]
    assert console(monkeypatch, "classify", *flags, "--train_file", "a.csv", "--validation_file", "b.csv") == 0
    assert (
        console(monkeypatch, "run-glue", *flags, "--train_file", "a.csv", "--test_file", "b.csv", "--do_predict") == 0
    )
    assert [(config.do_train, config.do_eval, config.do_predict) for config in seen] == [
        (True, True, False),
        (False, False, True),
    ]


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        ("ner", "did you mean tag?"),
        ("card", "did you mean make_card?"),
        ("fine-tune", "did you mean classify, tag, answer or choose?"),
        ("nonsense", "bert-repro --help lists them"),
    ],
)
def test_a_recipe_that_is_none_gets_a_suggestion(monkeypatch, capsys, typed, advice):
    assert console(monkeypatch, typed) == 2
    assert capsys.readouterr().err == f"error: there is no recipe {typed!r}; {advice}\n"


def test_examples_of_help_are_calls_as_the_user_makes_them(monkeypatch, capsys):
    assert console(monkeypatch, "run_squad", "--help") == 0
    installed = capsys.readouterr().out
    assert console(monkeypatch, "answer", "--help") == 0
    assert capsys.readouterr().out.startswith("usage: bert-repro answer [flags]")
    with pytest.raises(SystemExit):
        cli.main("run_squad", ["--help"])
    script = capsys.readouterr().out
    assert "\n    bert-repro run_squad --model_name_or_path runs/squad \\\n" in installed
    assert "\n    python recipes/run_squad.py --model_name_or_path runs/squad" in script
    assert "accelerate launch -m bert_repro run_squad" in installed
    assert "accelerate launch recipes/run_squad.py" in script


def test_help_begins_with_everyday_groups_and_fits_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for name, recipe in RECIPES.items():
        assert console(monkeypatch, name, "--help") == 0
        text = capsys.readouterr().out
        headings = re.findall(r"^([a-z][^\n]*):$", text.split(help_text(name, name))[1], re.MULTILINE)
        used = {item.metadata["group"] for item in dataclasses.fields(recipe.config)}
        assert headings == [
            *(title.lower() for group, title in configs.GROUPS.items() if group in used),
            "settings from files",
        ]
        assert all(f"  --{item.name}" in text for item in dataclasses.fields(recipe.config) if item.name != "phases")
        assert max(map(len, text.splitlines())) <= 80


def test_help_shows_choices_defaults_and_presets(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    console(monkeypatch, "run_glue", "--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "--mixed_precision no|bf16|fp16 Autocast precision. [default: no]" in text
    assert "One of: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, ax." in text
    assert "named set of values: glue, glue-sweep, finetuning-grid." in text
    assert "--do_train Train." in text
    assert "Default: ." not in text
    assert "default: none" not in text.replace("[default: none]", "").replace("checkpoints; default: none", "")


def test_the_end_of_a_run_says_where_everything_is_and_what_to_type_next(monkeypatch, tmp_path, capsys):
    folder = str(tmp_path / "mrpc")
    found = {"metrics": {"accuracy": 0.86764, "f1": 0.9}, "primary_metric": "f1", "split": "validation"}
    monkeypatch.setattr(Recipe, "load", lambda self: lambda config: found)
    flags = ["--model_name_or_path", "m", "--task_name", "mrpc", "--do_train", "--do_eval", "--output_dir", folder]
    assert console(monkeypatch, "run_glue", *flags) == 0
    scores, model, predict, upload = capsys.readouterr().err.splitlines()
    assert scores == "f1 0.9, accuracy 0.8676 on validation"
    assert model == f"model, card and scores: {folder} (README.md, results.json)"
    for line, name in ((predict, "predict"), (upload, "push_to_hub")):
        program, recipe, *arguments = line.removeprefix("next:").split()
        assert (program, recipe) == ("bert-repro", name)
        cli.parse(RECIPES[recipe].config, arguments)


def commands(name: str) -> list[list[str]]:
    """The calls of recipes in a help text, as lists of words."""
    text = re.sub(r"\\\n\s*", " ", help_text(name, name))
    calls = re.findall(r"^    (?:accelerate launch -m bert_repro|bert-repro) (.+)$", text, re.MULTILINE)
    return [shlex.split(call, comments=True) for call in calls if " ... " not in call]


@pytest.mark.parametrize("name", RECIPES)
def test_the_examples_of_help_are_valid_calls(name: str) -> None:
    assert commands(name), "a recipe shows how it is called"
    for recipe, *arguments in commands(name):
        cli.parse(RECIPES[recipe].config, arguments)
