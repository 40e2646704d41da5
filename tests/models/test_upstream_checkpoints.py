"""Checkpoints that transformers' BERT has saved load into our classes and train there as they do in its own."""

import pytest
import torch
import transformers

import bert_repro
from bert_repro.models.configuration_bert_repro import HEADS


def labels_for(auto_class: str, batch: dict[str, torch.Tensor], tiny) -> dict[str, torch.Tensor]:
    rows = len(batch["input_ids"])
    classes = torch.arange(rows) % 2
    masked = tiny.masked_labels(batch)
    return {
        "AutoModelForPreTraining": {"labels": masked, "next_sentence_label": classes},
        "AutoModelForMaskedLM": {"labels": masked},
        "AutoModelForCausalLM": {"labels": torch.where(batch["attention_mask"].bool(), batch["input_ids"], -100)},
        "AutoModelForNextSentencePrediction": {"labels": classes},
        "AutoModelForSequenceClassification": {"labels": classes},
        "AutoModelForMultipleChoice": {"labels": classes[:1]},
        "AutoModelForTokenClassification": {"labels": batch["input_ids"] % 2},
        "AutoModelForQuestionAnswering": {"start_positions": classes, "end_positions": classes + 1},
    }[auto_class]


def train(model: torch.nn.Module, inputs: dict[str, torch.Tensor], steps: int = 4) -> list[float]:
    """The losses of some steps on one batch, without dropout."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("auto_class", [name for name in HEADS if name != "AutoModel"])
def test_it_loads_without_a_warning_and_trains_as_there(auto_class, tiny, tmp_path, warnings_logged):
    head = HEADS[auto_class]
    torch.manual_seed(0)
    config = tiny.upstream_config(is_decoder=auto_class == "AutoModelForCausalLM")
    upstream = getattr(transformers, head.upstream)(config)
    upstream.save_pretrained(tmp_path)
    ours = getattr(bert_repro, head.ours).from_pretrained(tmp_path)
    assert warnings_logged() == []
    batch = tiny.batch()
    inputs = batch | labels_for(auto_class, batch, tiny)
    if auto_class == "AutoModelForMultipleChoice":
        inputs = {name: values if name == "labels" else values[None] for name, values in inputs.items()}
    there, here = train(upstream, dict(inputs)), train(ours, dict(inputs))
    assert here == pytest.approx(there, rel=1e-4)
    assert here[-1] < here[0]


def test_the_bare_encoder_and_a_new_head(tiny, tmp_path):
    torch.manual_seed(0)
    upstream = transformers.BertModel(tiny.upstream_config()).eval()
    upstream.save_pretrained(tmp_path)
    batch = tiny.batch()
    ours = bert_repro.BertReproModel.from_pretrained(tmp_path).eval()
    tiny.assert_close(ours(**batch).last_hidden_state, upstream(**batch).last_hidden_state)
    tiny.assert_close(ours(**batch).pooler_output, upstream(**batch).pooler_output)
    tagger = bert_repro.BertReproForTokenClassification.from_pretrained(tmp_path, num_labels=9)
    assert tagger.classifier.out_features == 9
    assert torch.equal(tagger.bert.encoder.layer[0].output.dense.weight, upstream.encoder.layer[0].output.dense.weight)
