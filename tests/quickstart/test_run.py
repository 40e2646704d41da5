import json
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_repro.configs import QuickstartConfig
from bert_repro.errors import UserError
from bert_repro.quickstart import run, stages
from bert_repro.quickstart.run import Promise, Screen, prepare_folder
from bert_repro.utils.files import STATUS

ROOT = Path(__file__).resolve().parents[2]


def test_best_constant_guess_counts_predicted_tokens_only():
    labels = np.array([[-100, 7, 7, -100], [9, -100, 7, 8]])
    assert stages.best_constant_guess(labels) == (7, 0.6)


def test_table_sets_columns():
    assert run.table([("a", "10%"), ("long", "5%")], right=(1,)) == ["  a     10%", "  long   5%"]


def test_screen_stays_within_its_width(caplog):
    caplog.set_level(logging.INFO, logger="bert_repro")
    shown = Screen()
    with shown.stage("Text", "word " * 60):
        run.say("word " * 60, label="  It reads: ")
    lines = "\n".join(caplog.messages).splitlines()
    assert max(map(len, lines)) <= run.WIDTH
    assert any(line.startswith("1. Text ---") for line in lines)
    assert list(shown.seconds) == ["Text"]


def test_a_foreign_folder_or_a_file_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="holds something other than an earlier quickstart; name another folder"):
        prepare_folder(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file; name a folder"):
        prepare_folder(tmp_path / "file")


def test_an_own_folder_is_emptied_and_claimed(tmp_path):
    folder = tmp_path / "quickstart"
    prepare_folder(folder)
    (folder / "corpus").mkdir()
    prepare_folder(folder)
    assert sorted(path.name for path in folder.iterdir()) == [run.RESULTS, STATUS]
    assert json.loads((folder / run.RESULTS).read_text()) == {"finished": False}


def test_a_result_below_what_is_needed_ends_with_code_1_and_a_clear_line(tmp_path, monkeypatch, caplog):
    kept, missed = Promise("first", 0.5, 0.5), Promise("second", 0.30, 0.45)
    monkeypatch.setattr(run, "_quiet_libraries", lambda: None)
    monkeypatch.setattr(run.Quickstart, "run", lambda self: {"checks": [vars(kept), vars(missed)]})
    with pytest.raises(SystemExit) as stopped:
        run.run_quickstart(QuickstartConfig(output_dir=str(tmp_path / "run")))
    assert stopped.value.code == 1
    assert caplog.messages[-1] == "not reached: second is 30.0%, expected at least 45.0%"
    assert json.loads((tmp_path / "run" / STATUS).read_text())["code"] == 1


def test_the_classifier_reads_as_far_as_positions_were_trained(tmp_path):
    folders = stages.Folders(tmp_path)
    trained = stages.pretraining_config(folders, seed=0).phases[-1].max_seq_length
    assert stages.finetuning_config(folders, folders.pretrained, seed=0).max_seq_length == trained


def test_the_upstream_process_never_imports_this_package_and_agrees(tmp_path):
    from transformers import BertTokenizer

    from bert_repro.models.configuration_bert_repro import BertReproConfig
    from bert_repro.models.modeling_bert_repro import BertReproForPreTraining, BertReproModel
    from bert_repro.quickstart import upstream_process

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
    shape = BertReproConfig(
        vocab_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    BertReproForPreTraining(shape).save_pretrained(tmp_path)
    BertTokenizer(vocab={word: number for number, word in enumerate(words)}).save_pretrained(tmp_path)
    request = {"AutoModel": {"auto_class": "AutoModel", "folder": str(tmp_path), "texts": ["a b", "a [MASK] c b"]}}
    answers = stages._ask_upstream_process(tmp_path, request)
    ours = upstream_process.outputs(BertReproModel, str(tmp_path), ["a b", "a [MASK] c b"])
    assert answers["AutoModel"].shape == (2, 6, 32)
    np.testing.assert_allclose(answers["AutoModel"], ours, atol=1e-5)


def test_the_upstream_process_refuses_when_this_package_was_imported(tmp_path):
    from bert_repro.quickstart import upstream_process

    (tmp_path / "request.json").write_text("{}")
    with pytest.raises(SystemExit, match="imported bert_repro"):
        upstream_process.main(str(tmp_path / "request.json"), str(tmp_path / "answers.npz"))


@pytest.mark.slow
def test_the_complete_quickstart_reaches_what_it_must(tmp_path):
    command = [sys.executable, str(ROOT / "recipes" / "quickstart.py"), "--output_dir", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads((tmp_path / "run" / run.RESULTS).read_text())
    assert results["finished"]
    assert all(Promise(**check).holds for check in results["checks"])
    assert {"majority", "bag_of_words", "untrained", "pretrained"} == set(results["metrics"]["classifier"])
    assert max(results["metrics"]["largest_difference"].values()) < 1e-3
    assert json.loads((tmp_path / "run" / STATUS).read_text())["code"] == 0
