"""An objective is one class: a new one needs nothing else."""

import numpy as np
import pytest
from running import TINY, recipe, results

from bert_repro.configs import ExampleConfig
from bert_repro.pretraining import objectives
from bert_repro.pretraining.masking import MaskedTokens, num_predictions
from bert_repro.pretraining.objectives import (
    LeftToRight,
    MaskedLanguageModel,
    MaskedLanguageModelWithNsp,
    objective_of,
)
from bert_repro.training import training_log
from bert_repro.utils.arrays import row_starts
from bert_repro.utils.randomness import below, draw


class SpanMasking(MaskedLanguageModel):
    """Predicts one contiguous span of each sequence, whose tokens all become [MASK]."""

    description = "span masking"

    @classmethod
    def is_selected_by(cls, config: ExampleConfig) -> bool:
        return not config.next_sentence_prediction

    def choose(self, masker, tokens, lengths, keys, is_special):
        counts = num_predictions(lengths, self.config.masked_lm_prob, None)
        # A span begins after [CLS] and ends before the last [SEP].
        first = row_starts(lengths)[:-1] + 1 + below(lengths - counts - 1, draw(keys, 0))
        positions = np.concatenate(
            [np.arange(start, start + count) for start, count in zip(first, counts, strict=True)]
        )
        ids = tokens.astype(np.int64)
        targets = ids[positions]
        ids[positions] = 4
        return MaskedTokens(ids, positions, targets)


@pytest.mark.parametrize("layout", ["", "--packing false", "--static_shapes true"])
def test_a_new_objective_is_one_class_and_one_line(world, tmp_path, monkeypatch, layout):
    monkeypatch.setattr(objectives, "OBJECTIVES", [SpanMasking, *objectives.OBJECTIVES])
    arguments = ["--corpus", world.corpus, "--output_dir", tmp_path / "run", "--max_steps 2 --eval_steps 1"]
    assert recipe("run_pretraining", TINY, "--next_sentence_prediction false", *arguments, *layout.split()) == 0
    record = results(tmp_path / "run")
    assert record["objective"] == "span masking"
    assert set(record["metrics"]) == {"mlm_loss", "mlm_accuracy", "mlm_perplexity"}
    assert set(record["mlm_breakdown"]["by_action"]) == {"mask"}, "every predicted token is read as [MASK]"
    rows = training_log.read(tmp_path / "run" / "train_log.jsonl")
    assert [row["step"] for row in rows if "mlm_accuracy" in row] == [1, 2]


@pytest.mark.parametrize(
    ("settings", "expected", "draws_pairs"),
    [
        ({}, MaskedLanguageModelWithNsp, True),
        ({"next_sentence_prediction": False}, MaskedLanguageModel, True),
        ({"next_sentence_prediction": False, "no_nsp_input": "contiguous"}, MaskedLanguageModel, False),
        ({"next_sentence_prediction": False, "left_to_right": True}, LeftToRight, True),
    ],
)
def test_settings_select_an_objective(settings, expected, draws_pairs):
    objective = objective_of(ExampleConfig(**settings))
    assert type(objective) is expected and objective.draws_pairs is draws_pairs


def test_exactly_one_of_the_papers_objectives_is_selected():
    for settings in (
        {},
        {"next_sentence_prediction": False},
        {"next_sentence_prediction": False, "left_to_right": True},
    ):
        config = ExampleConfig(**settings)
        assert sum(objective.is_selected_by(config) for objective in objectives.OBJECTIVES) == 1


def test_a_model_without_nsp_says_so_on_its_card(world, tmp_path):
    arguments = ["--corpus", world.corpus, "--output_dir", tmp_path / "run", "--max_steps 1"]
    assert recipe("run_pretraining", TINY, "--next_sentence_prediction false", *arguments) == 0
    card = (tmp_path / "run" / "README.md").read_text()
    assert "masked language modeling" in card and "next sentence prediction" not in card
