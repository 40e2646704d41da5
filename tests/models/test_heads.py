"""What a transformers user does with a head, tried on all nine. Each subclass names a head and labels its input."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
import transformers
from tiny_models import NO_DROPOUT

import bert_repro
from bert_repro.models.configuration_bert_repro import AUTO_CLASSES

MINI = Path(__file__).resolve().parents[2] / "checkpoints" / "bert-repro-mini"


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def stacked(values: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return values if torch.is_tensor(values) else torch.stack(values)


class HeadTests:
    """The tests. Subclasses set `auto_class`, and `labels` unless the class has no loss."""

    auto_class: ClassVar[str]
    fields: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _setup(self, tiny):
        self.tiny = tiny
        head = AUTO_CLASSES[self.auto_class]
        self.model_class = getattr(bert_repro, head.ours)
        self.upstream_class = getattr(transformers, head.upstream)
        torch.manual_seed(0)

    # What a subclass says about its head

    def batch(self) -> dict[str, torch.Tensor]:
        return self.tiny.batch()

    def labels(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {}

    # Tools

    def model(self, implementation: str = "sdpa", **fields: Any):
        config = self.tiny.config(**{**self.fields, **fields}, attn_implementation=implementation)
        return self.model_class(config)

    def pair(self, implementation: str = "eager", folder: Path | None = None):
        """Ours, under the configuration that decodes all positions, and the upstream model with equal weights.

        Weights are random, or those of a folder, but for heads that it lacks.
        """
        upstream = self.upstream_class(self.tiny.upstream_config(**self.fields, attn_implementation=implementation))
        ours = self.model(implementation, sparse_prediction=False)
        if folder:
            options = {**NO_DROPOUT, **self.fields, "attn_implementation": implementation}
            upstream = self.upstream_class.from_pretrained(folder, **options)
            ours = self.model_class.from_pretrained(folder, **options, sparse_prediction=False)
            name = "encoder.layer.3.output.dense.weight"
            assert torch.equal(ours.base_model.get_parameter(name), upstream.base_model.get_parameter(name))
        ours.load_state_dict(upstream.state_dict())
        return ours, upstream

    def inputs(self) -> dict[str, torch.Tensor]:
        batch = self.batch()
        return {**batch, **self.labels(batch)}

    def backward(self, outputs) -> None:
        outputs["loss"].backward()

    # Parity with the upstream class

    @pytest.mark.parametrize("folder", [None, MINI], ids=["random weights", "trained weights"])
    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    def test_outputs_and_gradients_equal_upstream(self, implementation, folder):
        ours, upstream = self.pair(implementation, folder)
        inputs = {**self.inputs(), "output_hidden_states": True, "output_attentions": implementation == "eager"}
        our_outputs, upstream_outputs = ours(**inputs), upstream(**inputs)
        for name in upstream_outputs.keys() - {"past_key_values", "cross_attentions"}:
            self.tiny.assert_close(stacked(our_outputs[name]), stacked(upstream_outputs[name]), name)
        self.backward(our_outputs)
        self.backward(upstream_outputs)
        expected_gradients = gradients(upstream)
        assert gradients(ours).keys() == expected_gradients.keys()
        for name, gradient in gradients(ours).items():
            self.tiny.assert_close(gradient, expected_gradients[name], name)

    def test_state_dicts_interchange_and_the_auto_class_is_ours(self):
        ours, upstream = self.pair()
        assert list(ours.state_dict()) == list(upstream.state_dict())
        upstream.load_state_dict(ours.state_dict(), strict=True)
        auto_class = getattr(transformers, self.auto_class)
        assert type(auto_class.from_config(self.tiny.config(**self.fields))) is self.model_class
        assert self.model_class.accepts_loss_kwargs is False, "losses are not left to the upstream Trainer"

    def test_loads_an_upstream_folder_without_a_warning(self, tmp_path, warnings_logged):
        upstream = self.upstream_class(self.tiny.upstream_config(**self.fields))
        upstream.save_pretrained(tmp_path)
        ours = self.model_class.from_pretrained(tmp_path)
        assert warnings_logged() == []
        for name, values in upstream.state_dict().items():
            assert torch.equal(ours.state_dict()[name], values), name

    # Half precision

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_loads_in_half_precision(self, tmp_path, dtype):
        model = self.model()
        model.to(dtype).save_pretrained(tmp_path)
        loaded = self.model_class.from_pretrained(tmp_path)
        assert {parameter.dtype for parameter in loaded.parameters()} == {dtype}
        outputs = loaded(**self.inputs())
        assert all(values.isfinite().all() for values in outputs.values())
        if "loss" in outputs:
            assert outputs.loss.dtype == torch.float32

    # What goes in

    def test_embeddings_in_place_of_ids_and_neither_nor_both(self):
        model = self.model().eval()
        inputs = self.inputs()
        expected = model(**inputs)
        embeddings = model.get_input_embeddings()(inputs["input_ids"])
        given = {**inputs, "input_ids": None, "inputs_embeds": embeddings}
        for name, values in model(**given).items():
            assert torch.equal(values, expected[name]), name
        for wrong in ({**given, "input_ids": inputs["input_ids"]}, {**given, "inputs_embeds": None}):
            with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
                model(**wrong)

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    def test_packed_equals_padded(self, implementation):
        ours = self.model(implementation)
        inputs = self.inputs()
        mask = inputs["attention_mask"]
        padded = ours(**inputs)
        packed = ours(**self.tiny.pack(inputs))
        for name, values in packed.items():
            self.compare_packed(name, values, padded, mask, inputs)
        self.backward(packed)
        from_packed = gradients(ours)
        ours.zero_grad()
        self.backward(self.padded_for_gradients(padded, inputs))
        for name, gradient in gradients(ours).items():
            self.tiny.assert_close(from_packed[name], gradient, name)

    def compare_packed(self, name, values, padded, mask, inputs) -> None:
        expected = padded[name]
        if expected.shape[:2] == mask.shape:
            values, expected = values[0], expected[mask.bool()]
        self.tiny.assert_close(values, expected, name)

    def padded_for_gradients(self, padded, inputs):
        return padded

    # Training

    def test_gradient_checkpointing_gives_the_same_gradients(self):
        model = self.model().train()
        inputs = self.inputs()
        self.backward(model(**inputs))
        expected, calls = gradients(model), []
        model.zero_grad()
        model.gradient_checkpointing_enable()
        model.base_model.encoder.layer[0].intermediate.register_forward_hook(lambda *_: calls.append(1))
        self.backward(model(**inputs))
        assert len(calls) == 2, "the layer ran once: nothing was recomputed"
        for name, gradient in gradients(model).items():
            assert torch.equal(gradient, expected[name]), name

    def test_vocabulary_is_resized(self):
        model = self.model().eval()
        inputs = self.inputs()
        expected = model(**inputs)
        model.resize_token_embeddings(70, mean_resizing=False)
        assert model.config.vocab_size == 70
        assert model.get_input_embeddings().weight.shape == (70, 32)
        decoder = model.get_output_embeddings()
        if decoder is not None:
            assert decoder.weight is model.get_input_embeddings().weight
            assert decoder.bias is model.cls.predictions.bias
            assert decoder.bias.shape == (70,)
        for name, values in model(**inputs).items():
            if values.shape[-1:] == (70,):
                values = values[..., :61]
            if "loss" not in name:
                self.tiny.assert_close(values, expected[name], name)

    @pytest.mark.slow
    def test_compiles_into_one_graph(self):
        model = self.model().eval()
        inputs = self.inputs()
        torch._dynamo.reset()  # all heads share transformers' wrapper, which would be compiled again for each
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        for name, expected in model(**inputs).items():
            self.tiny.assert_close(compiled(**inputs)[name], expected, name)

    @pytest.mark.slow
    def test_upstream_trainer_accumulates_equal_gradients(self, tmp_path):
        assert self.trained_norm(tmp_path, batch_size=8) == pytest.approx(self.trained_norm(tmp_path, 2), rel=1e-5)

    def trained_norm(self, output_dir, batch_size: int) -> float:
        """Gradient norm of one step of the upstream Trainer over eight copies of the first example."""
        example = {name: values[0] for name, values in self.inputs().items()}
        steps = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": 8 // batch_size}
        quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
        arguments = transformers.TrainingArguments(output_dir, max_steps=1, logging_steps=1, **steps, **quiet)
        torch.manual_seed(0)
        trainer = transformers.Trainer(self.model(), arguments, train_dataset=[example] * 8)
        trainer.train()
        return trainer.state.log_history[0]["grad_norm"]


class TokenPredictorTests(HeadTests):
    """Heads with a prediction head."""

    def labels(self, batch):
        return {"labels": self.tiny.masked_labels(batch)}


class TestModel(HeadTests):
    auto_class = "AutoModel"

    def test_an_upstream_encoder_takes_a_new_head(self, tmp_path):
        upstream = self.upstream_class(self.tiny.upstream_config())
        upstream.save_pretrained(tmp_path)
        tagger = bert_repro.BertReproForTokenClassification.from_pretrained(tmp_path, num_labels=9)
        assert tagger.classifier.out_features == 9
        expected = upstream.encoder.layer[0].output.dense.weight
        assert torch.equal(tagger.bert.encoder.layer[0].output.dense.weight, expected)

    def test_sdpa_gives_attentions_too(self):
        model, batch = self.model("sdpa").eval(), self.batch()
        found = model(**batch, output_attentions=True).attentions
        model.set_attn_implementation("eager")
        self.tiny.assert_close(stacked(found), stacked(model(**batch, output_attentions=True).attentions))

    test_upstream_trainer_accumulates_equal_gradients = None  # the encoder has no loss to train

    def backward(self, outputs):
        states = outputs.last_hidden_state
        if len(states) > 1:
            states = states[self.batch()["attention_mask"].bool()]
        (states.square().mean() + outputs.pooler_output.square().mean()).backward()


class TestForPreTraining(TokenPredictorTests):
    auto_class = "AutoModelForPreTraining"

    def labels(self, batch):
        return {**super().labels(batch), "next_sentence_label": torch.tensor([0, 1, 1])}


class TestForMaskedLM(TokenPredictorTests):
    auto_class = "AutoModelForMaskedLM"


class TestForCausalLM(TokenPredictorTests):
    auto_class = "AutoModelForCausalLM"
    fields: ClassVar = {"is_decoder": True}

    def labels(self, batch):
        return {"labels": torch.where(batch["attention_mask"].bool(), batch["input_ids"], -100)}


class TestForNextSentencePrediction(HeadTests):
    auto_class = "AutoModelForNextSentencePrediction"

    def labels(self, batch):
        return {"labels": torch.tensor([0, 1, 1])}


class TestForSequenceClassification(HeadTests):
    auto_class = "AutoModelForSequenceClassification"
    fields: ClassVar = {"num_labels": 3}

    def labels(self, batch):
        return {"labels": torch.tensor([2, 0, 1])}


class TestSequenceRegression(HeadTests):
    auto_class = "AutoModelForSequenceClassification"
    fields: ClassVar = {"num_labels": 1}

    def labels(self, batch):
        return {"labels": torch.tensor([0.5, 4.0, 2.5])}


class TestSequenceMultiLabel(HeadTests):
    auto_class = "AutoModelForSequenceClassification"
    fields: ClassVar = {"num_labels": 2, "problem_type": "multi_label_classification"}

    def labels(self, batch):
        return {"labels": torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])}


class TestForMultipleChoice(HeadTests):
    auto_class = "AutoModelForMultipleChoice"

    def batch(self):
        return {name: values.view(2, 3, -1) for name, values in self.tiny.batch((9, 5, 8, 3, 7, 9)).items()}

    def labels(self, batch):
        return {"labels": torch.tensor([2, 0])}


class TestForTokenClassification(HeadTests):
    auto_class = "AutoModelForTokenClassification"
    fields: ClassVar = {"num_labels": 5}

    def labels(self, batch):
        return {"labels": torch.where(batch["attention_mask"].bool(), batch["input_ids"] % 5, -100)}


class TestForQuestionAnswering(HeadTests):
    auto_class = "AutoModelForQuestionAnswering"

    def labels(self, batch):
        return {"start_positions": torch.tensor([0, 3, 1]), "end_positions": torch.tensor([10, 5, 99])}

    def compare_packed(self, name, values, padded, mask, inputs):
        if name == "loss":
            self.tiny.assert_close(values, self.loss_without_padding(padded, inputs), name)
        else:
            self.tiny.assert_close(values[mask.bool()], padded[name][mask.bool()], name)
            assert (values[~mask.bool()] == torch.finfo(values.dtype).min).all()

    def padded_for_gradients(self, padded, inputs):
        return {"loss": self.loss_without_padding(padded, inputs)}

    def loss_without_padding(self, padded, inputs):
        padding = inputs["attention_mask"] == 0
        starts, ends = (padded[name].masked_fill(padding, -torch.inf) for name in ("start_logits", "end_logits"))
        end_positions = torch.where(inputs["end_positions"] == 99, -100, inputs["end_positions"])
        return (F.cross_entropy(starts, inputs["start_positions"]) + F.cross_entropy(ends, end_positions)) / 2


def test_every_head_is_tested():
    tested = {test.auto_class for name, test in globals().items() if name.startswith("Test")}
    assert tested == set(AUTO_CLASSES)
