from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from bert_repro.errors import NonFiniteError, UserError
from bert_repro.finetuning.data import encode
from bert_repro.finetuning.run import output_rows
from bert_repro.tasks.glue_tasks import COLA, MNLI, MRPC, RTE, STSB

PAD, CLS, SEP = 0, 2, 3


def words(start: int, count: int) -> str:
    return " ".join(str(n) for n in range(start, start + count))


def ids(start: int, count: int) -> list[int]:
    return list(range(start + 5, start + 5 + count))


def pairs(lengths, **columns):
    first, second = zip(*lengths, strict=True)
    return datasets.Dataset.from_dict(
        {
            "sentence1": [words(0, n) for n in first],
            "sentence2": [words(50, n) for n in second],
            "idx": list(range(len(lengths))),
            **columns,
        }
    )


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


def test_truncation_is_counted_in_the_log_and_impossible_lengths_are_refused(numbers, caplog):
    with caplog.at_level("INFO", logger="bert_repro"):
        encode(RTE, pairs([(2, 3), (9, 4)]), numbers, 10)
    assert "rte: 1 of 2 inputs lost text to the length limit" in caplog.text
    bare = PreTrainedTokenizerFast(tokenizer_object=numbers.backend_tokenizer, pad_token="[PAD]")
    with pytest.raises(UserError, match=r"no \[CLS\] or \[SEP\] token"):
        encode(RTE, pairs([(2, 3)]), bare, 10)


@pytest.mark.parametrize("packing", [False, True])
def test_collate_carries_labels(numbers, packing):
    features = list(encode(RTE, pairs([(1, 1), (2, 2)], label=[0, 1]), numbers, 10))
    batch = RTE.collate(features, pad_token_id=PAD, packing=packing)
    assert batch["labels"].tolist() == [0, 1] and batch["labels"].dtype == torch.int64
    assert batch["input_ids"].shape == ((1, 12) if packing else (2, 7))
    assert batch["token_type_ids"].shape == batch["input_ids"].shape
    assert ("cu_seq_lens_q" in batch) is packing
    assert RTE.loss_items(features).tolist() == [1, 1]


def test_from_model_output_to_scores(numbers):
    dataset = pairs([(1, 1), (2, 2), (3, 3), (4, 4)], label=[1, 1, 0, 0])
    features = encode(MRPC, dataset, numbers, 16)
    logits = torch.tensor([[0.0, 2.0], [1.0, 0.0], [0.0, 1.0], [3.0, 1.0]], requires_grad=True)
    outputs = output_rows(SimpleNamespace(logits=logits), features["length"][:])
    predictions = MRPC.postprocess(dataset, features, outputs)
    assert predictions["prediction"].tolist() == [1, 0, 1, 0]
    assert predictions["probabilities"][0, 1] == pytest.approx(1 / (1 + np.exp(-2.0)))
    assert predictions["probabilities"].sum(axis=1) == pytest.approx(np.ones(4))
    assert MRPC.is_labelled(dataset)
    assert MRPC.score(predictions, dataset) == {"accuracy": 0.5, "f1": 0.5}


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
    dataset = pairs([(1, 1), (1, 1)]).remove_columns("idx").add_column("idx", [7, 3])
    predictions = {"prediction": np.array([1, 0]), "probabilities": np.array([[0.25, 0.75], [1.0, 0.0]])}
    (path,) = RTE.write_predictions(tmp_path, "test", dataset, predictions)
    assert path.name == "predictions.test.tsv"
    assert path.read_text() == (
        "index\tprediction\tprobability_entailment\tprobability_not_entailment\tsentence1\tsentence2\n"
        "7\tnot_entailment\t0.250000\t0.750000\t0\t50\n"
        "3\tentailment\t1.000000\t0.000000\t0\t50\n"
    )


@pytest.mark.parametrize(
    ("id2label", "columns"),
    [
        ({0: "entailment", 1: "neutral", 2: "contradiction"}, [0, 1, 2]),
        ({0: "NEUTRAL", 2: "ENTAILMENT", 1: "CONTRADICTION"}, [2, 0, 1]),
        ({0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}, [0, 1, 2]),
    ],
)
def test_logits_of_finished_models_are_put_into_the_tasks_order(id2label, columns):
    assert MNLI.label_columns(id2label) == columns
    assert STSB.label_columns({0: "any name"}) == [0]


@pytest.mark.parametrize(
    "id2label", [{0: "LABEL_0", 1: "LABEL_1"}, {0: "negative", 1: "positive", 2: "other"}, {0: "entailment"}]
)
def test_models_of_another_task_are_refused(id2label):
    with pytest.raises(UserError, match=r"--model_name_or_path: the model tells apart .* task mnli needs"):
        MNLI.label_columns(id2label)
