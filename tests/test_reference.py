"""The generated documents are current and complete."""

import dataclasses

from bert_repro import configs, reference
from bert_repro.presets import PRESETS
from bert_repro.recipes import RECIPES

# Choices where the sources differ or are silent that no later change may drop from the list.
DEVIATING_SETTINGS = (
    "answer_text", "bias_correction", "decay_from", "decoding", "doc_stride", "dupe_factor", "hidden_act",
    "learning_rate", "max_grad_norm", "max_input_chars_per_word", "ner_context", "no_nsp_input", "nsp_sampling",
    "qa_loss", "qa_softmax", "random_token_source", "sentence_splitter", "start_segment", "text_passages_only",
    "vocab_size", "warmup_ratio", "weight_decay", "whole_word_masking",
)  # fmt: skip


def test_documents_are_current():
    assert reference.stale() == [], "run: make docs"


def test_a_changed_document_is_noticed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    assert reference.main(["--write"]) == 2, "outside a checkout nothing is written"
    assert list(tmp_path.iterdir()) == []
    for name in ("docs/reference", "recipes"):
        (tmp_path / name).mkdir(parents=True)
    assert reference.main(["--check"]) == 1
    assert "make docs" in capsys.readouterr().err
    assert reference.main(["--write"]) == 0
    assert reference.main(["--check"]) == 0
    (tmp_path / "docs" / "DEVIATIONS.md").write_text("something else", encoding="utf-8")
    assert [path.name for path in reference.stale()] == ["DEVIATIONS.md"]


def test_every_class_of_settings_has_its_place_and_none_is_left_out():
    named = {item for item in vars(configs).values() if isinstance(item, type) and issubclass(item, configs.Config)}
    assert set(reference.config_classes()) == named - {configs.Config}
    assert {recipe.config for recipe in RECIPES.values()} <= named
    for config_class in reference.config_classes():
        chain = [base for base in config_class.__mro__ if base in reference.config_classes()]
        reached = {item.name for base in chain for item in reference.own_settings(base)}
        assert reached == {item.name for item in dataclasses.fields(config_class)}


def test_every_setting_of_every_class_and_every_preset_is_in_the_configuration_reference():
    sections = reference.configuration_reference().split("\n## ")
    by_title = {section.splitlines()[0]: section for section in sections}
    for config_class in reference.config_classes():
        section = by_title[config_class.__name__]
        for item in reference.own_settings(config_class):
            assert f"`--{item.name}`" in section or f"`{item.name}` (preset or YAML only)" in section
    text = reference.configuration_reference()
    assert all(f"| `{name}` |" in text for name in PRESETS)


def test_every_setting_with_a_deviation_is_listed_with_its_default_and_text():
    lines = reference.deviations().splitlines()
    assert [name for name in DEVIATING_SETTINGS if f"| `{name}` |" not in reference.deviations()] == []
    for config_class in reference.config_classes():
        for item in reference.own_settings(config_class):
            if item.metadata["deviation"]:
                start = f"| `{item.name}` | {config_class.__name__} |"
                assert any(line.startswith(start) and item.metadata["deviation"] in line for line in lines)
