"""Published folders in transformers' own pipelines, and next sentence prediction in ours."""

import pytest
import transformers
from tiny_models import word_model, word_tokenizer

import bert_repro
from bert_repro.errors import UserError

WORDS = "paris is the capital of france . a film that never lets you go mari ##e worked in this text about sports"
TOKENIZER = word_tokenizer(WORDS)


@pytest.mark.parametrize("head", ["ForNextSentencePrediction", "ForPreTraining"])
def test_next_sentence_prediction(tmp_path, head):
    folder = str(tmp_path)
    for part in (word_model(TOKENIZER, head, initializer_range=0.5), TOKENIZER):
        part.save_pretrained(folder)
    follows = transformers.pipeline("next-sentence-prediction", model=folder)
    pairs = [{"text": "paris is the capital", "text_pair": "of france ."}, {"text": "a film", "text_pair": "never"}]
    model = bert_repro.BertReproForNextSentencePrediction.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for batch_size in (1, 2):
        for found, pair in zip(follows(pairs, batch_size=batch_size), pairs, strict=True):
            logits = model(**tokenizer(pair["text"], pair["text_pair"], return_tensors="pt")).logits[0]
            assert found["label"] == ("IsNext", "NotNext")[int(logits.argmax())]
            assert found["score"] == pytest.approx(logits.softmax(0).max().item(), abs=1e-5)
    assert follows({"text": "paris " * 60, "text_pair": "is"})["label"] in ("IsNext", "NotNext")
    ids = follows.preprocess({"text": "a [SEP] film", "text_pair": "[MASK] never"})["input_ids"][0].tolist()
    assert ids.count(tokenizer.sep_token_id) == 2 and tokenizer.mask_token_id not in ids
    with pytest.raises(UserError, match="text_pair"):
        follows("one text")
