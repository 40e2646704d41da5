"""From preset, YAML and flags to a run: values, refusals in one line, help, exit codes, what is printed at the end."""

import contextlib
import json
import os
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import huggingface_hub
import pytest

import bert_repro
from bert_repro import cli, configs, next_steps
from bert_repro.configs import (
    GlueConfig,
    NerConfig,
    Phase,
    PretrainingConfig,
    SentenceScoringConfig,
    TokenizerConfig,
    TriviaqaConfig,
)
from bert_repro.errors import NonFiniteError, StopRequested, UserError
from bert_repro.recipes import RECIPES, Recipe
from bert_repro.tasks.data import from_hub

GLUE = ["--model_name_or_path", "m", "--do_eval"]


def refusal(config_class: type[configs.Config], *arguments: str) -> str:
    with pytest.raises(UserError, match=r"^[^\n]*$") as raised:
        cli.parse(config_class, arguments)
    return str(raised.value)


def test_flags_win_over_yaml_over_presets_over_defaults_as_transformers_users_write_them(tmp_path):
    file = tmp_path / "run.yaml"
    config = cli.parse(GlueConfig, [*GLUE, "--do_train", "--preset", "glue", "--seed", "8"])
    assert (config.train_batch_size, config.seed, config.num_train_epochs, config.do_train) == (32, 8, 3.0, True)
    config = cli.parse(PretrainingConfig, ["--preset", "cpu-trial", "--learning-rate=2e-4", "--no_packing"])
    assert (config.num_hidden_layers, config.learning_rate, config.packing) == (4, 2e-4, False)
    assert config.phases[0] == Phase(32, 2_000, 128)
    file.write_text("learning_rate: 3e-5\nseed: 7\nrun_name: null\nreport_to: [tensorboard, wandb]\npacking: false\n")
    config = cli.parse(GlueConfig, [*GLUE, "--preset", "glue", "--config", str(file), "--seed", "8"])
    assert (config.learning_rate, config.seed, config.run_name, config.packing) == (3e-5, 8, None, False)
    assert (config.report_to, config.train_batch_size) == (("tensorboard", "wandb"), 32)
    file.write_text("phases:\n- {max_seq_length: 128, steps: 9, batch: 4}\n")
    assert cli.parse(PretrainingConfig, ["--config", str(file)]).phases == (Phase(128, 9, 4),)
    config = NerConfig(model_name_or_path="m", do_train=True, do_eval=True, sweep_learning_rates=[1e-5, 2e-5])
    assert config.sweep_learning_rates == (1e-5, 2e-5) and config.sweeps


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learnin_rate", "1"], "unknown flag --learnin_rate; did you mean --learning_rate?"),
        (["--epochs", "1"], "unknown flag --epochs; did you mean --num_train_epochs?"),
        (["--corpus", "x"], "unknown flag --corpus; see --help_all"),
        (["--learning_rate", "fast"], "--learning_rate: invalid float value: 'fast'"),
        (["--packing", "maybe"], "--packing: Truthy value expected: got maybe"),
        (["--task_name", "mrcp"], "--task_name is 'mrcp'; did you mean mrpc?"),
        (["--mixed_precision", "8"], "--mixed_precision is '8'; it must be one of: no, bf16, fp16, auto"),
        (["--seed", "1", "stray"], "'stray' is not expected here"),
        (["--warmup_ratio", "2"], "--warmup_ratio is 2.0; it is a fraction from 0 to 1"),
        (["--sweep_batch_sizes", "8", "0"], "--sweep_batch_sizes is 0; it must be positive"),
        (["--num_train_epochs", "nan"], "--num_train_epochs is nan; it must be positive"),
        (["--learning_rate", "-1"], "--learning_rate -1.0"),
        (["--max_seq_length", "4"], "--max_seq_length 4"),
        (["--seed", "-1"], "--seed -1"),
        (["--push_to_hub", "--hub_model_id", "a/b"], "--push_to_hub true requires --do_train"),
        (["--load_best_model_at_end"], "--load_best_model_at_end requires --do_train and --eval_steps"),
        (["--train_file", "a", "--data_dir", "b"], "--data_dir b cannot be combined with --train_file"),
        (["--train_file", "a", "--validation_fraction", "0.1", "--task_name", "rte"], "rte excludes --train_file"),
        (["--do_train", "--learning_rate", ".1", "--sweep_learning_rates", "1"], "--learning_rate 0.1 and --sweep"),
        (["--preset", "paper-base"], "--preset paper-base is for PretrainingConfig"),
        (["--config", "nowhere.yaml"], "--config nowhere.yaml: cannot be read"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    assert message in refusal(GlueConfig, *GLUE, *arguments)


@pytest.mark.parametrize(
    ("config_class", "arguments", "message"),
    [
        (GlueConfig, ["--do_train"], "--model_name_or_path is missing: Checkpoint to start from"),
        (GlueConfig, ["--model_name_or_path", "m"], "There is nothing to do. Name files such as --train_file"),
        (configs.PushConfig, ["--folder", "f"], "--hub_model_id is missing"),
        (
            PretrainingConfig,
            ["--hidden_size", "100"],
            "--hidden_size 100 is not a multiple of --num_attention_heads 12",
        ),
        (PretrainingConfig, ["--left_to_right"], "--left_to_right requires --next_sentence_prediction false"),
        (PretrainingConfig, ["--peft", "lora"], "--peft lora requires --model_name_or_path"),
        (PretrainingConfig, ["--phases", "[]"], "--phases is set in a file (--config)"),
        (configs.SquadConfig, [*GLUE, "--max_seq_length", "64"], "It must be at least 72, or --max_query_length"),
    ],
)
def test_what_is_missing_or_contradicts_itself_is_named(config_class, arguments, message):
    assert message in refusal(config_class, *arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learnin_rate: 1", "unknown setting 'learnin_rate'; did you mean learning_rate?"),
        ("seed: many", "run.yaml: --seed: invalid int value: 'many'"),
        ("- 1", "holds no mapping"),
        ("seed: 1\nseed: 2", "line 2: 'seed'"),
        ("seed: !!python/object:os.system x", "is not valid YAML"),
        ("phases: 32x100x8", "phases is '32x100x8', not a list"),
        ("phases: [{max_seq_length: 32, steps: 1e3, batch: 8}]", "phases.0.steps is '1e3'"),
    ],
)
def test_wrong_yaml_is_named(tmp_path, text, message):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    assert message in refusal(PretrainingConfig, "--config", str(file))


@pytest.mark.parametrize(
    ("config_class", "settings", "message"),
    [
        (GlueConfig, {"model_name_or_path": "runs/mrpc"}, "--model_name_or_path runs/mrpc: no such folder; name the"),
        (GlueConfig, {"model_name_or_path": "models/brt"}, "no such folder; did you mean models/bert?"),
        (GlueConfig, {"model_name_or_path": "modles/bert"}, "no such folder; did you mean models/bert?"),
        (GlueConfig, {"validation_file": "de.csv"}, "--validation_file de.csv: no such file; did you mean dev.csv?"),
        (GlueConfig, {"validation_file": "models"}, "--validation_file models is a folder; name a file"),
        (GlueConfig, {"data_dir": "dev.csv"}, "--data_dir dev.csv is a file; name a folder"),
        (GlueConfig, {"model_name_or_path": "dev.csv"}, "--model_name_or_path dev.csv is a file; name a folder"),
        (GlueConfig, {"output_dir": "dev.csv/run"}, "--output_dir dev.csv/run lies below the file dev.csv"),
        (GlueConfig, {"output_dir": "models"}, "--output_dir models is not empty; name another folder"),
        (PretrainingConfig, {"corpus": "runs/corpus"}, "--corpus runs/corpus: no such folder"),
        (PretrainingConfig, {"corpus": "models"}, "--corpus models: not a prepared corpus (manifest.json is missing)"),
        (TriviaqaConfig, {"qa_file": "dev.csv", "evidence_dir": "models", "output_file": "dev.csv"}, "dev.csv exists"),
        (TokenizerConfig, {"input_files": "texts/", "output_dir": "o"}, "--input_files texts/: no such file"),
        (SentenceScoringConfig, {"input_file": "none.txt", "output_dir": "o"}, "none.txt: no such file"),
    ],
)
def test_wrong_paths_are_refused_before_a_run(config_class, settings, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "bert").mkdir(parents=True)
    (tmp_path / "dev.csv").write_text("text,label\n")
    if "model_name_or_path" in {item.name for item in fields(config_class)}:
        settings = {"model_name_or_path": "org/bert", **settings}
    if config_class is GlueConfig:
        settings = {"do_eval": True, **settings}
    monkeypatch.setattr(Recipe, "load", lambda self: pytest.fail("it began"))
    with pytest.raises(UserError, match=r"^[^\n]*$") as raised:
        Recipe(config_class, "none:none").run(config_class(**settings))
    assert message in str(raised.value)
    assert not (tmp_path / "runs" / "run" / "results.json").exists()


def test_a_refusal_and_help_import_no_torch_and_are_quick():
    code = (
        "import sys, bert_repro.corpus.sentences; from bert_repro import cli; sys.argv = ['bert-repro', *{!r}]\n"
        "assert 'transformers' not in sys.modules\n"
        "try: cli.console()\nexcept SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    for arguments, result in (
        (["run_glue", "--help"], "0 False"),
        (["run_glue", "--model_name_or_path", "./none", "--do_eval"], "2 False"),
    ):
        done = subprocess.run([sys.executable, "-c", code.format(arguments)], capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == result, done.stderr


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_exists_and_its_help_shows_what_is_needed_first(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert callable(RECIPES[name].load())
    shown = []
    for flag in ("--help", "--help_all"):
        with pytest.raises(SystemExit, match="0"):
            cli.main(name, [flag])
        shown.append(capsys.readouterr().out)
    short, long = shown
    assert f"bert-repro {name} --" in short and len(short.splitlines()) <= 78
    if name in ("run_glue", "run_squad", "run_ner", "run_swag", "run_pretraining"):
        needed = "model_name_or_path learning_rate max_steps output_dir resume_from_checkpoint help_all"
        places = [short.index(f"\n  --{flag} ") for flag in needed.split()]
        assert places == sorted(places) and "adam_beta1" not in short and "import bert_repro" not in short
        assert "import bert_repro" in long and "  --adam_beta1 X" in long
    for item in fields(RECIPES[name].config):
        assert f"  --{item.name}" in long or item.name in ("phases", "sources")
        assert f"  --{item.name}" in short or item.name not in RECIPES[name].config.REQUIRED


def run_main(monkeypatch: pytest.MonkeyPatch, output_dir: Path, error: BaseException | None) -> int:
    def recipe(config: object, task: object) -> None:
        if error:
            raise error

    monkeypatch.setattr(Recipe, "load", lambda self: recipe)
    with pytest.raises(SystemExit) as raised:
        cli.main("run_glue", argv=[*GLUE, "--task_name", "mrpc", "--output_dir", str(output_dir)])
    return int(raised.value.code or 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [(None, 0), (UserError("x"), 2), (NonFiniteError("nan"), 3), (StopRequested(15), 143), (RuntimeError("bug"), 1)],
)
def test_exit_codes_and_status(monkeypatch, tmp_path, error, code):
    assert run_main(monkeypatch, tmp_path / "run", error) == code
    assert json.loads((tmp_path / "run" / "status.json").read_text())["code"] == code


def test_a_refused_run_is_one_line_and_leaves_the_record_of_an_earlier_one(monkeypatch, tmp_path, capsys):
    run_main(monkeypatch, tmp_path / "run", UserError("the file is\nwrong"))
    assert capsys.readouterr().err == "error: the file is wrong\n"
    (tmp_path / "status.json").write_text('{"code": 0}')
    assert run_main(monkeypatch, tmp_path, None) == 2
    assert json.loads((tmp_path / "status.json").read_text()) == {"code": 0}


def console(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["bert-repro", *arguments])
    with pytest.raises(SystemExit) as raised:
        cli.console()
    return int(raised.value.code or 0)


def test_the_console_lists_recipes_and_its_version_and_suggests_a_recipe(monkeypatch, capsys):
    assert console(monkeypatch, "--help") == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in RECIPES) and max(map(len, listed.splitlines())) <= 110
    assert console(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"bert-repro {bert_repro.__version__}\n"
    assert console(monkeypatch, "finetune") == 2
    assert capsys.readouterr().err == "error: there is no recipe 'finetune'; did you mean run_glue?\n"


def test_files_alone_say_what_to_do_and_the_end_of_a_run_says_what_comes_next(monkeypatch, tmp_path, capsys):
    seen: list[GlueConfig] = []

    def run(config, task):
        seen.append(config)
        Path("out").mkdir()
        Path("out/results.json").write_text('{"data": {"example": {"text": "a"}, "files": {"train": "a.csv"}}}')

    monkeypatch.setattr(Recipe, "load", lambda self: run)
    for name in ("a.csv", "b c.csv"):
        (tmp_path / name).write_text("text,label\na,x\nb,y\n")
    monkeypatch.chdir(tmp_path)
    flags = ["run-glue", "--model_name_or_path", "org/m", "--output_dir", "out", "--train_file", "a.csv"]
    assert console(monkeypatch, *flags, "--validation_file", "b c.csv") == 0
    assert (seen[0].do_train, seen[0].do_eval, seen[0].do_predict) == (True, True, False)
    *_, made, following = capsys.readouterr().err.splitlines()
    assert made == "model, card and scores: out (README.md, results.json; both show a training text)"
    assert following.startswith("next: bert-repro predict --model_name_or_path out --input_file 'b c.csv' ")
    Path("c").mkdir()
    Path("c/manifest.json").write_text('{"counts": {"tokens": 2000000, "documents": 4}}')
    made, continued = (
        next_steps.after_corpus(configs.CorpusConfig(input_files="t", tokenizer=tokenizer, output_dir="c"))
        for tokenizer in (str(tmp_path), "org/bert")
    )
    assert "--preset cpu-trial" in made[-1]
    assert "--model_name_or_path org/bert --train_batch_size 32 --max_steps 4882" in continued[-1]
    Path("c/manifest.json").write_text('{"counts": {"tokens": 2000000, "documents": 3}}')
    few = configs.CorpusConfig(input_files="t", tokenizer="org/bert", output_dir="c")
    assert len(next_steps.after_corpus(few)) == 1  # pre-training holds some out
    (tmp_path / "dev.txt").write_text("")
    tagger = NerConfig(model_name_or_path="m", train_file="t.txt", validation_file="dev.txt", output_dir="out")
    tags = next_steps.after_finetuning(tagger)[-1]
    assert tags.endswith("--input_file dev.txt --output_file answers.csv --input_format conll")
    monkeypatch.setattr(next_steps, "hub_is_reachable", lambda: False)
    pretrained = next_steps.after_pretraining(configs.PretrainingConfig(corpus="c", output_dir="out"))[-1]
    assert "--train_file train.csv" in pretrained, "what needs the Hub is no next step without it"
    for line in (following, made[-1], continued[-1], tags, pretrained):
        recipe, *arguments = shlex.split(line.removeprefix("next: bert-repro "))
        cli.parse(RECIPES[recipe].config, arguments)


def test_settings_say_whether_they_decide_the_result():
    config = GlueConfig(model_name_or_path="m", do_train=True)
    assert {"seed", "warmup_ratio", "label_smoothing"} <= configs.deciding_settings(config).keys()
    flags: dict[str, set[bool]] = {}
    for config_class in (PretrainingConfig, GlueConfig, NerConfig, configs.SquadConfig, configs.SwagConfig):
        for item in fields(config_class):
            flags.setdefault(item.name, set()).add(item.metadata["decides_result"])
    assert [name for name, said in flags.items() if len(said) > 1] == [], "one name, one meaning"


def test_without_a_network_the_hub_is_not_asked_for_minutes(monkeypatch):
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.getaddrinfo", lambda host, port: Path("/no/such/name").stat())
    config = GlueConfig(model_name_or_path="org/none", task_name="mrpc", do_eval=True)
    for ask, answer in (
        (lambda: configs.require_paths(config), r"org/none: no such folder, the Hub cannot be reached.*HF_HUB_OFFLINE"),
        (lambda: from_hub("org/none", ["train"]), r"org/none cannot be read from the Hub"),
    ):
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        with pytest.raises(UserError, match=answer):
            ask()
        assert huggingface_hub.constants.HF_HUB_OFFLINE


def test_a_terminal_shows_a_line_before_the_libraries_are_imported(tmp_path):
    # The recipe is refused after its arguments are parsed; the first line must not wait for that.
    arguments = ["-m", "bert_repro", "run_glue", "--model_name_or_path", str(tmp_path / "missing"), "--do_eval"]
    primary, secondary = os.openpty()
    with subprocess.Popen([sys.executable, *arguments], stdout=secondary, stderr=secondary):
        os.close(secondary)
        lines = b""
        with contextlib.suppress(OSError):
            while block := os.read(primary, 1024):
                lines += block
    os.close(primary)
    assert lines.decode().startswith("Starting run_glue ...\r\n") and "error: " in lines.decode()
    help_text = subprocess.run([sys.executable, *arguments[:3], "--help"], capture_output=True, text=True, check=True)
    assert help_text.stdout.startswith("usage: ") and not help_text.stderr
