"""How natural is a sentence to a masked language model? (Salazar et al., 2020; Kauf and Ivanova, 2023)"""

from typing import Any

from transformers.pipelines.base import Pipeline

from bert_repro.errors import UserError
from bert_repro.inference.sentence_scoring import METHODS, score_record, score_sentences


class SentenceScoringPipeline(Pipeline):  # type: ignore[misc]
    """Gives the pseudo-log-likelihood of a sentence, in all and token by token.

        score = pipeline("sentence-scoring", model="org/bert")
        score("The cat sleeps.")
        # {"text": "The cat sleeps.", "score": -9.1, "tokens": [{"token": "the", "log_probability": -1.2}, ...]}

    A list of texts gives a list. The masked copies of a text are batched together.

    Parameters of the pipeline or of a call:
        method: `within_word_l2r` (default) or `original`; see `bert_repro.inference.sentence_scoring.score_sentences`.
        batch_tokens: most tokens of a forward pass.
    """

    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def _sanitize_parameters(
        self, method: str | None = None, batch_tokens: int | None = None, **unknown: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if unknown:
            raise UserError(f"sentence-scoring has no parameter {min(unknown)}")
        if method is not None and method not in METHODS:
            raise UserError(f"method is {method!r}; it must be one of: {', '.join(METHODS)}")
        given = {"method": method, "batch_tokens": batch_tokens}
        return {}, {name: value for name, value in given.items() if value is not None}, {}

    def preprocess(self, input_: Any, **_: Any) -> dict[str, Any]:
        """Takes one text."""
        if not isinstance(input_, str):
            raise UserError(f"sentence-scoring takes a text or a list of texts, got {input_!r}")
        return {"text": input_}

    def _forward(self, input_tensors: dict[str, Any], **settings: Any) -> dict[str, Any]:
        text = input_tensors["text"]
        (score,) = score_sentences(self.model, self.tokenizer, [text], names=[repr(text)], **settings)
        return {"text": text, "sentence_score": score}

    def postprocess(self, model_outputs: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Returns `text`, its `score`, and `tokens` with each one's log-probability."""
        return score_record(model_outputs["text"], model_outputs["sentence_score"])
