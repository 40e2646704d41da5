"""Texts and pairs as inputs, logits as labels and numbers, and runs that say one thing whatever they read."""

import datasets
import numpy as np
import pytest
from errors import user_error
from tiny_models import word_tokenizer

from bert_repro.errors import NonFiniteError
from bert_repro.finetuning.data import encode
from bert_repro.tasks.choice import SWAG
from bert_repro.tasks.encoding import token_ids, truncated_lengths
from bert_repro.tasks.glue_tasks import COLA, MNLI, MRPC, RTE, STSB
from bert_repro.tasks.multi_label import MultiLabelTask
from bert_repro.tasks.squad_windows import tokenize_passages

CLS, SEP = 2, 3


def words(start: int, count: int) -> str:
    return " ".join(str(n) for n in range(start, start + count))


def ids(start: int, count: int) -> list[int]:
    return list(range(start + 5, start + 5 + count))


def pairs(lengths, **columns):
    first, second = zip(*lengths, strict=True)
    texts = {"sentence1": [words(0, n) for n in first], "sentence2": [words(50, n) for n in second]}
    return datasets.Dataset.from_dict({**texts, "idx": list(range(len(lengths))), **columns})


def test_single_texts_keep_their_first_tokens(numbers):
    dataset = datasets.Dataset.from_dict({"sentence": [words(0, 9), words(0, 8), ""], "label": [1, 0, 1]})
    features = encode(COLA, dataset, numbers, 10)
    assert features["input_ids"][:] == [[CLS, *ids(0, 8), SEP], [CLS, *ids(0, 8), SEP], [CLS, SEP]]
    assert features["token_type_ids"][:] == [[0] * 10, [0] * 10, [0, 0]]
    assert features["length"][:] == [10, 10, 2]
    assert features["truncated"][:] == [True, False, False]
    assert features["labels"][:] == [1, 0, 1]
    assert COLA.count_truncated(features) == 1


def test_pairs_lose_the_end_of_the_longer_text_and_on_a_tie_of_the_second(numbers):
    features = encode(RTE, pairs([(2, 3), (9, 4), (9, 9), (0, 9)]), numbers, 10)
    kept = [(2, 3), (4, 3), (4, 3), (0, 7)]
    assert features["input_ids"][:] == [[CLS, *ids(0, a), SEP, *ids(50, b), SEP] for a, b in kept]
    assert features["token_type_ids"][:] == [[0] * (a + 2) + [1] * (b + 1) for a, b in kept]
    assert features["truncated"][:] == [False, True, True, True]
    assert "labels" not in features.column_names


def test_regression_predicts_the_logit_itself():
    dataset = pairs([(1, 1)] * 3, label=[0.0, 2.5, 5.0])
    outputs = list(np.array([[-0.5], [2.0], [7.0]], dtype=np.float32))
    predictions = STSB.postprocess(dataset, dataset, outputs)
    assert predictions["prediction"].tolist() == [-0.5, 2.0, 7.0]
    assert STSB.score(predictions, dataset)["spearmanr"] == pytest.approx(1.0)


def test_outputs_that_are_not_finite_stop_the_run_and_extreme_ones_do_not():
    with pytest.raises(NonFiniteError, match="mrpc"):
        MRPC.postprocess(None, None, [np.array([np.nan, 0.0], dtype=np.float32)])
    predictions = MRPC.postprocess(None, None, [np.array([1e4, -1e4], dtype=np.float32)])
    assert predictions["probabilities"].tolist() == [[1.0, 0.0]]


def test_predictions_are_written_with_label_names_in_file_order(tmp_path):
    dataset = pairs([(1, 1), (1, 1)], idx=[7, 3])
    predictions = {"prediction": np.array([1, 0]), "probabilities": np.array([[0.25, 0.75], [1.0, 0.0]])}
    (path,) = RTE.write_predictions(tmp_path, "test", dataset, predictions)
    assert path.name == "predictions.test.tsv"
    assert path.read_text() == (
        "index\tprediction\tprobability_entailment\tprobability_not_entailment\tsentence1\tsentence2\n"
        "7\tnot_entailment\t0.250000\t0.750000\t0\t50\n"
        "3\tentailment\t1.000000\t0.000000\t0\t50\n"
    )


def test_logits_of_finished_models_are_put_into_the_tasks_order():
    for names, columns in (
        (("entailment", "neutral", "contradiction"), [0, 1, 2]),
        (("NEUTRAL", "CONTRADICTION", "ENTAILMENT"), [2, 0, 1]),
        (("LABEL_0", "LABEL_1", "LABEL_2"), [0, 1, 2]),
    ):
        assert MNLI.label_columns(dict(enumerate(names))) == columns
    assert STSB.label_columns({0: "any name"}) == [0]
    for other in ({0: "LABEL_0", 1: "LABEL_1"}, {0: "negative", 1: "positive", 2: "other"}, {0: "entailment"}):
        with user_error("mnli", *other.values(), setting="model_name_or_path"):
            MNLI.label_columns(other)


def test_truncation_equals_popping_one_token_at_a_time():
    for limit in (1, 2, 5, 8):
        for length_a in range(12):
            for length_b in range(12):
                a, b = list(range(length_a)), list(range(length_b))
                while len(a) + len(b) > limit:
                    (a if len(a) > len(b) else b).pop()
                assert truncated_lengths(length_a, length_b, limit) == (len(a), len(b)), (length_a, length_b, limit)


def test_special_tokens_written_in_a_text_are_text():
    tokenizer = word_tokenizer("a b [ ] sep mask")
    assert tokenizer("a [SEP] b")["input_ids"] == [2, 5, 3, 6, 3]
    expected = [5, 7, 9, 8, 6, 7, 10, 8]
    assert token_ids(tokenizer, ["a [SEP] b[MASK]"]) == [expected]
    (passage,) = tokenize_passages(tokenizer, ["a [SEP] b[MASK]"])
    assert passage.ids.tolist() == expected and passage.starts.tolist() == [0, 2, 3, 6, 8, 9, 10, 14]


def test_one_label_for_all_is_degenerate_unless_the_split_asks_for_it():
    for predictions, labels, degenerate in (
        ([1, 1, 1, 1], [0, 1, 1, 0], True),
        ([1, 1, 1, 0], [0, 1, 1, 0], False),
        ([1, 1, 1, 1], [1, 1, 1, 1], False),
    ):
        dataset = datasets.Dataset.from_dict({"label": labels})
        assert RTE.is_degenerate({"prediction": np.array(predictions)}, dataset) is degenerate


class TestScoresThatSayLittle:
    """Dev sets and answers with one label only: what results and log say about their scores."""

    def details(self, task, predictions, labels, caplog):
        caplog.clear()
        details = task.score_details(predictions, datasets.Dataset.from_dict({"label": labels}))
        notes = details.get("notes", [])
        warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == len(notes) and all(note in line for note, line in zip(notes, warnings, strict=True))
        return " ".join(notes)

    def test_a_dev_set_of_one_label_is_said(self, caplog):
        all_right = {"prediction": np.array([1, 1, 1])}
        notes = self.details(MRPC, all_right, [1, 1, 1], caplog)
        assert "All 3 rows" in notes and notes.count("'equivalent'") == 2
        notes = self.details(MRPC, {"prediction": np.array([1, 0, 1])}, [1, 1, 1], caplog)
        assert "All 3 rows" in notes and notes.count("'equivalent'") == 1
        assert self.details(MRPC, {"prediction": np.array([1, 0, 1])}, [1, 0, 1], caplog) == ""

    def test_correlations_that_are_undefined_are_said(self, caplog):
        for predictions, labels, contained in (
            ([0, 0, 0], [0, 1, 0], ("matthews_correlation", "answers")),
            ([0, 1, 0], [0, 0, 0], ("matthews_correlation", "labels", "'unacceptable'")),
            ([0, 1, 1], [0, 1, 0], ()),
        ):
            predicted = {"prediction": np.array(predictions)}
            notes = self.details(COLA, predicted, labels, caplog)
            assert all(text in notes for text in contained) and bool(notes) is bool(contained)
        notes = self.details(STSB, {"prediction": np.array([1.0, 2.0])}, [3.0, 3.0], caplog)
        assert "All 2 rows" in notes and "'3'" in notes and "pearson and spearmanr" in notes

    def test_choices_and_several_labels_too(self, caplog):
        assert "All 2 rows" in self.details(SWAG, {"prediction": np.array([2, 1])}, [0, 0], caplog)
        task = MultiLabelTask(
            name="custom", title="x", metrics=("micro_f1",), primary_metric="micro_f1", label_names=("a", "b"),
            text_columns=("text",),
        )  # fmt: skip
        predicted = {"probabilities": np.array([[0.9, 0.9], [0.9, 0.1]])}
        assert "'a|b'" in self.details(task, predicted, [[1, 1], [1, 1]], caplog)
        assert self.details(task, predicted, [[1, 1], [1, 0]], caplog) == ""

    def test_a_baseline_that_scores_zero_is_explained(self, caplog):
        rows = {"sentence": ["a good day", "a bad day", "so bad"], "label": [1, 0, 0], "idx": [0, 1, 2]}
        dataset = datasets.Dataset.from_dict(rows)
        with caplog.at_level("INFO", "bert_repro"):
            scores = COLA.baselines(dataset, dataset)
        assert scores["most frequent label"]["matthews_correlation"] == 0.0
        (message,) = [record.getMessage() for record in caplog.records]
        assert "'most frequent label'" in message and "same answer" in message
        with caplog.at_level("INFO", "bert_repro"):
            assert COLA.baselines(dataset.select([1, 2]), dataset) == {}
        assert "same label" in caplog.text
