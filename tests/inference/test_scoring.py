"""Pseudo-log-likelihoods equal those of a loop over upstream transformers; pairs are counted as BLiMP counts them."""

import json
import lzma
from pathlib import Path

import pytest
import torch
import transformers
from running import recipe, results
from tiny_models import word_model, word_tokenizer

import bert_repro
from bert_repro.inference.scoring import score_sentences

TOKENIZER = word_tokenizer("the cat sleeps on a mat un ##believ ##ably it was ! do not ##s")
SENTENCES = ["The cat sleeps!", "unbelievably mats", "it", "the cat was on a mat unbelievably ", "cats sleeps"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    shape = {"num_hidden_layers": 2, "max_position_embeddings": 16, "initializer_range": 0.5}
    word_model(TOKENIZER, "ForPreTraining", **shape).save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return str(path)


def expected(folder: str, sentence: str, method: str) -> list[float]:
    """By upstream transformers, one token at a time, with the rule written out on the pieces themselves."""
    model = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(sentence)["input_ids"]
    pieces = tokenizer.convert_ids_to_tokens(ids)
    values = []
    for place in range(1, len(ids) - 1):
        masked = list(ids)
        masked[place] = tokenizer.mask_token_id
        later = place + 1
        while method == "within_word_l2r" and pieces[later].startswith("##"):
            masked[later] = tokenizer.mask_token_id
            later += 1
        with torch.no_grad():
            values.append(model(torch.tensor([masked])).logits[0, place].log_softmax(-1)[ids[place]].item())
    return values


@pytest.mark.parametrize("method", ["within_word_l2r", "original"])
@pytest.mark.parametrize("batch_tokens", [1, 30, 8192])
def test_every_token_has_the_log_probability_of_upstream(folder, method, batch_tokens):
    model = bert_repro.BertReproForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    scores = score_sentences(model, tokenizer, SENTENCES, SENTENCES, method=method, batch_tokens=batch_tokens)
    for sentence, score in zip(SENTENCES, scores, strict=True):
        assert score.log_probabilities == pytest.approx(expected(folder, sentence, method), abs=1e-4)
        assert score.tokens == tokenizer.tokenize(sentence)
        assert score.total == pytest.approx(sum(score.log_probabilities))


def write_pairs(folder: Path, uid: str, *sentences: tuple[str, str]) -> None:
    known = {"UID": uid, "linguistics_term": f"{uid[0]}_term", "field": "syntax"}
    with lzma.open(folder / f"{uid}.jsonl.xz", "wt", encoding="utf-8") as file:
        for good, bad in sentences:
            file.write(json.dumps({"sentence_good": good, "sentence_bad": bad, **known}) + "\n")


def test_minimal_pairs_are_counted_by_paradigm_and_phenomenon(folder, tmp_path):
    source = tmp_path / "pairs"
    source.mkdir()
    one, two, three = ("the cat sleeps", "cat the sleeps"), ("it was", "it do"), ("a mat", "a mat")
    write_pairs(source, "a1", one, two)
    write_pairs(source, "a2", one[::-1], three)
    arguments = ["--model_name_or_path", folder, "--minimal_pairs", source, "--output_dir", tmp_path / "out"]
    assert recipe("score_sentences", *arguments) == 0

    def right(good: str, bad: str) -> int:
        return sum(expected(folder, good, "within_word_l2r")) > sum(expected(folder, bad, "within_word_l2r"))

    first, second = right(*one) + right(*two), right(*one[::-1])
    found, accuracy = results(tmp_path / "out"), (first + second) / 4
    assert found["paradigm"]["a1"] == {"accuracy": first / 2, "pairs": 2}
    assert found["paradigm"]["a2"]["accuracy"] == second / 2  # equal sentences are no success
    assert found["phenomenon"] == {"a_term": {"accuracy": accuracy, "pairs": 4}}
    assert found["metrics"] == {"accuracy": accuracy, "mean_paradigm_accuracy": accuracy, "ties": 1}


def test_a_bad_pair_is_one_line_and_code_2(folder, tmp_path, refused):
    path = tmp_path / "pairs.jsonl"
    arguments = ["--model_name_or_path", folder, "--minimal_pairs", path, "--output_dir", tmp_path / "out"]
    for line, reason in (
        ('{"sentence_good": "the cat", "sentence_bad": " "}', "line 2: the field 'sentence_bad' has no text"),
        ("the cat", "line 2: is not valid JSON"),
        (
            json.dumps({"sentence_good": "cat " * 20, "sentence_bad": "it"}),
            "line 2 has 20 tokens, but the model reads 14",
        ),
    ):
        path.write_text(json.dumps({"sentence_good": "it", "sentence_bad": "a"}) + "\n" + line + "\n", encoding="utf-8")
        error = refused("score_sentences", *arguments)
        assert reason in error and "pairs.jsonl" in error
    assert not (tmp_path / "out" / "results.json").exists()
