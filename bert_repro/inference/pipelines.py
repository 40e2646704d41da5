"""Pipelines for two tasks that transformers has no pipeline for; see `transformers.pipeline`.

- `extractive-question-answering` answers with the spans that run_squad.py would predict (paper 4.2, 4.3). It accepts
  any checkpoint with a question-answering head.
- `next-sentence-prediction` accepts any checkpoint with BERT's head for it (paper 3.1, task 2).

The other heads work with transformers' own pipelines. `import bert_repro` is enough to register these two: this module
is imported together with transformers' pipelines.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoModelForNextSentencePrediction, AutoModelForQuestionAnswering
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import ChunkPipeline, Pipeline

from bert_repro.configs import SquadConfig
from bert_repro.errors import UserError
from bert_repro.models.loading import longest_input
from bert_repro.tasks.squad_decoding import text_by_offsets
from bert_repro.tasks.squad_task import SQUAD, SquadSettings, SquadTask
from bert_repro.tasks.squad_windows import Passage, tokenize_passages
from bert_repro.utils.readers import quoted

LABELS = ("IsNext", "NotNext")
_LONGEST_WINDOW = 384  # tokens, if the model has that many positions
_LONGEST_QUESTION = 64  # tokens
_INPUTS = ("input_ids", "token_type_ids", "attention_mask")
_WINDOW_SETTINGS = ("max_seq_length", "max_query_length", "doc_stride")


class _ReadsText:
    """Makes a pipeline load only its model and a tokenizer."""

    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True


class NextSentencePipeline(_ReadsText, Pipeline):  # type: ignore[misc]
    """Scores whether `text_pair` is the continuation of `text`.

        import bert_repro
        from transformers import pipeline

        follows = pipeline("next-sentence-prediction", model="org/bert")
        print(follows({"text": "She opened the window.", "text_pair": "Fresh air came in."}))
        # {"label": "IsNext", "score": 0.98}

    A list of mappings returns a list; `batch_size` computes several at once. Pairs that are longer than the model's
    inputs are truncated, the longer text first.
    """

    def _sanitize_parameters(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        return {}, {}, {}

    def preprocess(self, input_: Any, **_: Any) -> dict[str, Any]:
        """Tokenizes a pair: `text` and `text_pair`."""
        if not isinstance(input_, dict) or not {"text", "text_pair"} <= input_.keys():
            raise UserError(
                f"next-sentence-prediction was given {quoted(input_)}. Pass {{'text': ..., 'text_pair': ...}}."
            )
        longest = longest_input(self.tokenizer, self.model.config.max_position_embeddings)
        encoded = self.tokenizer(
            input_["text"],
            input_["text_pair"],
            truncation=True,
            max_length=longest,
            # "[SEP]" written in a text is text, as in `tasks.encoding.tokenized`.
            split_special_tokens=True,
            return_tensors="pt",
        )
        return dict(encoded)

    def _forward(self, input_tensors: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {"logits": self.model(**input_tensors).logits}

    def postprocess(self, model_outputs: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Returns the more probable label, `IsNext` or `NotNext`, and its probability."""
        probabilities = model_outputs["logits"][0].float().softmax(-1).tolist()
        best = probabilities.index(max(probabilities))
        return {"label": LABELS[best], "score": probabilities[best]}


class ExtractiveQuestionAnsweringPipeline(_ReadsText, ChunkPipeline):  # type: ignore[misc]
    """Finds the span that answers a question in a passage of any length.

        import bert_repro
        from transformers import pipeline

        answer = pipeline("extractive-question-answering", model="org/bert-squad")
        print(answer(question="Where did she work?", context="Marie Curie worked in Paris."))
        # {"score": 0.97, "start": 22, "end": 27, "answer": "Paris"}

    The input may also be `{"question": ..., "context": ...}` or a list of them; `batch_size` computes several windows
    at once.

    Parameters of the pipeline or of a call:
        top_k: number of answers. Above 1 they are a list: first the model's answer, then the others, most probable
            first.
        handle_impossible_answer: whether a question may have no answer, which is returned as an empty text. By default
            it may if the model stores a threshold for it, as models fine-tuned on SQuAD v2.0 do.
        null_score_diff_threshold: a question has no answer if the score of no answer exceeds that of the best span by
            more than this. Default: the model's threshold, else 0.
        max_seq_length, max_query_length, doc_stride, n_best_size, max_answer_length, decoding: as in run_squad.py.

    `score` is the probability among the `n_best_size` best answers. `answer` is the passage from character `start` to
    before `end`.
    """

    def __call__(
        self, inputs: Any = None, *, question: str | None = None, context: str | None = None, **parameters: Any
    ) -> Any:
        """Answers one question or several; see the class.

        Args:
            inputs: a mapping with `question` and `context`, or a list of them.
            question: the question, in place of `inputs`.
            context: its passage, if `question` is given.
            parameters: see the class.

        Raises:
            UserError: a question or a passage is missing or empty.
        """
        if inputs is None:
            inputs = {"question": question, "context": context}
        is_single = isinstance(inputs, dict)
        # A single question is passed as a list too, because only lists are computed in batches of windows.
        answers = super().__call__([inputs] if is_single else list(inputs), **parameters)
        return answers[0] if is_single else answers

    def _sanitize_parameters(self, **settings: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        decoding = {name: value for name, value in settings.items() if value is not None}
        windows = {name: decoding.pop(name) for name in _WINDOW_SETTINGS if name in decoding}
        return windows, {}, decoding

    def preprocess(self, input_: Any, **windows: Any) -> Iterator[dict[str, Any]]:
        """Tokenizes a question and its passage into the windows that slide over it."""
        if not isinstance(input_, dict) or not _has_text(input_, "question") or not _has_text(input_, "context"):
            raise UserError(
                f"extractive-question-answering was given {quoted(input_)}. Pass {{'question': ..., 'context': ...}}."
            )
        question, context = input_["question"], input_["context"]

        # The length of the windows, and of the question in each of them.
        num_positions = self.model.config.max_position_embeddings
        longest_window = min(_LONGEST_WINDOW, longest_input(self.tokenizer, num_positions))
        length = windows.get("max_seq_length", longest_window)
        if length > num_positions:
            raise UserError(f"max_seq_length={length} exceeds the {num_positions} positions of the model.")
        question_length = min(_LONGEST_QUESTION, length // 2)
        task = self._task(**{"max_seq_length": length, "max_query_length": question_length, **windows})

        # Each window goes through the model by itself; `postprocess` gets all windows of a question together.
        columns = {"question": [question], "context": [context]}
        features = task.encode_batch(columns, self.tokenizer, task.settings.max_seq_length)
        (passage,) = tokenize_passages(self.tokenizer, [context])
        last = len(features["input_ids"]) - 1
        for number, ids in enumerate(features["input_ids"]):
            yield {
                "input_ids": torch.tensor(ids)[None],
                "token_type_ids": torch.tensor(features["token_type_ids"][number], dtype=torch.long)[None],
                "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
                "length": len(ids),
                "window_start": features["window_start"][number],
                "passage_at": features["passage_at"][number],
                "passage": passage,
                "is_last": number == last,
            }

    def _forward(self, input_tensors: dict[str, Any], **_: Any) -> dict[str, Any]:
        output = self.model(**{name: input_tensors[name] for name in _INPUTS})
        scores = torch.stack([output.start_logits, output.end_logits], dim=-1)
        window = {name: value for name, value in input_tensors.items() if name not in _INPUTS}
        return {"scores": scores, **window}

    def postprocess(
        self,
        model_outputs: list[dict[str, Any]],
        top_k: int = 1,
        handle_impossible_answer: bool | None = None,
        null_score_diff_threshold: float | None = None,
        **decoding: Any,
    ) -> Any:
        """Returns the best answers over all windows of a question."""
        # Whether there may be no answer.
        threshold = null_score_diff_threshold
        if threshold is None:
            threshold = getattr(self.model.config, "null_score_diff_threshold", None)
        nullable = handle_impossible_answer
        if nullable is None:
            nullable = threshold is not None

        # The decoder returns texts. Their places in the passage are noted when it asks for them.
        spans: dict[str, tuple[int, int]] = {"": (0, 0)}

        def text_of(passage: Passage, first: int, last: int) -> str:
            text = text_by_offsets(passage, first, last)
            spans.setdefault(text, (int(passage.starts[first]), int(passage.ends[last])))
            return text

        decoder = self._task(**decoding).decoder(text_of, nullable=nullable)
        first = model_outputs[0]
        windows = [(window["window_start"], window["length"] - window["passage_at"] - 1) for window in model_outputs]
        scores = [window["scores"][0, : window["length"]].double().cpu().numpy() for window in model_outputs]
        answer = decoder.answer(first["passage"], windows, scores, first["passage_at"])

        # The model's answer comes first, then the others by probability.
        has_no_answer = nullable and answer.null_odds > (threshold or 0.0)
        best_text = "" if has_no_answer else answer.text
        answers = []
        for entry in sorted(answer.best, key=lambda entry: (entry["text"] != best_text, -entry["probability"])):
            text = entry["text"]
            if text in spans:
                start, end = spans[text]
                answers.append({"score": entry["probability"], "start": start, "end": end, "answer": text})
        if not answers:
            answers = [{"score": 0.0, "start": 0, "end": 0, "answer": ""}]
        return answers[0] if top_k == 1 else answers[:top_k]

    def _task(self, **settings: Any) -> SquadTask:
        config = replace(SquadConfig(model_name_or_path="-", do_eval=True), **settings)
        return replace(SQUAD, settings=SquadSettings.of(config), tokenizer=self.tokenizer)


def _has_text(input_: dict[str, Any], name: str) -> bool:
    return bool(str(input_.get(name) or "").strip())


PIPELINE_REGISTRY.register_pipeline(
    "extractive-question-answering",
    pipeline_class=ExtractiveQuestionAnsweringPipeline,
    pt_model=AutoModelForQuestionAnswering,
    type="text",
)
PIPELINE_REGISTRY.register_pipeline(
    "next-sentence-prediction",
    pipeline_class=NextSentencePipeline,
    pt_model=AutoModelForNextSentencePrediction,
    type="text",
)

__all__ = ["ExtractiveQuestionAnsweringPipeline", "NextSentencePipeline"]
