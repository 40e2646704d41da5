"""The question-answering pipeline gives what run_squad.py predicts, over long passages, in batches, with no answer."""

import dataclasses

import datasets
import pytest
import torch
import transformers
from tiny_models import word_model, word_tokenizer

import bert_repro
from bert_repro.configs import SquadConfig
from bert_repro.finetuning.data import encode
from bert_repro.finetuning.outputs import output_rows
from bert_repro.inference.pipelines import ExtractiveQuestionAnsweringPipeline
from bert_repro.tasks.squad_task import SQUAD, SQUAD_V2

WORDS = "where did she work ? marie curie worked in paris , france . a film that never lets you go slow ##ly"
TOKENIZER = word_tokenizer(WORDS)
QUESTION = "Where did she work?"
SHORT = "Marie Curie worked in Paris, France."
LONG = "Marie Curie worked slowly in France, a film that never lets go. Marie Curie worked in Paris. " * 7
WINDOWS = {"max_seq_length": 32, "max_query_length": 16, "doc_stride": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qa")
    model = word_model(TOKENIZER, "ForQuestionAnswering", seed=3, hidden_size=32, initializer_range=0.6)
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def answer(folder):
    found = transformers.pipeline("extractive-question-answering", model=str(folder))
    assert type(found) is ExtractiveQuestionAnsweringPipeline
    assert type(found.model) is transformers.BertForQuestionAnswering
    return found


def test_it_answers_as_run_squad_does(answer, folder):
    for task, nullable in ((SQUAD, False), (SQUAD_V2, True)):
        config = SquadConfig(model_name_or_path="-", do_eval=True, answer_text="offsets", **WINDOWS)
        task = dataclasses.replace(task.prepared(config, answer.tokenizer), null_score_diff_threshold=-0.5)
        rows = {"id": ["a", "b"], "question": [QUESTION, "Did she?"], "context": [LONG, SHORT]}
        dataset = datasets.Dataset.from_dict(rows)
        features = encode(task, dataset, answer.tokenizer, 32)
        assert len(features) > 8
        model = bert_repro.BertReproForQuestionAnswering.from_pretrained(folder).eval()
        outputs = []
        for row in features:
            batch = task.collate([{k: v for k, v in row.items() if k != "labels"}], pad_token_id=0, packing=False)
            with torch.no_grad():
                outputs += output_rows(model(**batch), [row["length"]])
        predictions = task.postprocess(dataset, features, outputs)
        options = {"handle_impossible_answer": nullable, "null_score_diff_threshold": -0.5, **WINDOWS}
        inputs = [{name: row[name] for name in ("question", "context")} for row in dataset]
        found = answer(inputs, top_k=5, batch_size=3, **options)
        assert [best[0]["answer"] for best in found] == task.answers(predictions)
        for best, nbest in zip(found, predictions["nbest"], strict=True):
            scores = {entry["text"]: entry["probability"] for entry in nbest}
            assert best == sorted(best, key=lambda entry: -entry["score"])
            assert len({entry["answer"] for entry in best}) == len(best) == 5
            for entry in best:
                assert entry["score"] == pytest.approx(scores[entry["answer"]], rel=1e-4)


def test_the_stored_threshold_decides(folder, tmp_path, answer):
    assert answer(question=QUESTION, context=SHORT)["answer"], "a model of v1.1 always answers"
    for threshold, answers in ((1e6, True), (-1e6, False)):
        model = bert_repro.BertReproForQuestionAnswering.from_pretrained(folder)
        model.config.null_score_diff_threshold = threshold
        model.save_pretrained(tmp_path)
        stored = transformers.pipeline("extractive-question-answering", model=str(tmp_path), tokenizer=answer.tokenizer)
        found = stored(question=QUESTION, context=SHORT, top_k=3)
        assert bool(found[0]["answer"]) is answers
        assert stored(question=QUESTION, context=SHORT, handle_impossible_answer=False)["answer"]
        flipped = stored(question=QUESTION, context=SHORT, null_score_diff_threshold=-threshold)
        assert bool(flipped["answer"]) is not answers
        if not answers:
            assert (found[0]["start"], found[0]["end"]) == (0, 0)
