"""Does a text follow another one? (paper 3.1, task 2)"""

from typing import Any

from transformers.pipelines.base import Pipeline

from bert_repro.errors import UserError

LABELS = ("IsNext", "NotNext")


class NextSentencePipeline(Pipeline):  # type: ignore[misc]
    """Scores whether `text_pair` is the continuation of `text`.

        follows = pipeline("next-sentence-prediction", model="org/bert")
        follows({"text": "She opened the window.", "text_pair": "Fresh air came in."})
        # {"label": "IsNext", "score": 0.98}

    A list of such mappings gives a list; `batch_size` computes several at once. What is longer than the model's
    positions is truncated, the longer text first.
    """

    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def _sanitize_parameters(self, **unknown: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if unknown:
            raise UserError(f"next-sentence-prediction has no parameter {min(unknown)}")
        return {}, {}, {}

    def preprocess(self, input_: Any, **_: Any) -> dict[str, Any]:
        """Tokenises a pair: `text` and `text_pair`."""
        if not isinstance(input_, dict) or not {"text", "text_pair"} <= input_.keys():
            raise UserError(f"next-sentence-prediction takes {{'text': ..., 'text_pair': ...}}, got {input_!r}")
        positions = self.model.config.max_position_embeddings
        encoded = self.tokenizer(
            input_["text"], input_["text_pair"], truncation=True, max_length=positions, return_tensors="pt"
        )
        return dict(encoded)

    def _forward(self, input_tensors: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {"logits": self.model(**input_tensors).logits}

    def postprocess(self, model_outputs: dict[str, Any], **_: Any) -> dict[str, Any]:
        """The likelier label, `IsNext` or `NotNext`, and its probability."""
        probabilities = model_outputs["logits"][0].float().softmax(-1).tolist()
        best = probabilities.index(max(probabilities))
        return {"label": LABELS[best], "score": probabilities[best]}
