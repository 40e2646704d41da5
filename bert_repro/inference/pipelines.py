"""Pipelines for two tasks that transformers has none for, registered by name; see `transformers.pipeline`.

`extractive-question-answering` takes any checkpoint with a question-answering head and finds the spans that
run_squad.py would predict (paper 4.2, 4.3); `next-sentence-prediction` takes any with BERT's (paper 3.1, task 2). The
other heads work with transformers' own pipelines. Importing
`bert_repro` is enough: this module is imported as soon as transformers' pipelines are.
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
from bert_repro.utils.readers import shown

LABELS = ("IsNext", "NotNext")
_LONGEST_WINDOW, _LONGEST_QUESTION = 384, 64  # where the model has the positions
_INPUTS = ("input_ids", "token_type_ids", "attention_mask")
_WINDOWS = ("max_seq_length", "max_query_length", "doc_stride")


class _ReadsText:
    """Makes a pipeline load a tokenizer and nothing else but its model."""

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

    A list of mappings gives a list; `batch_size` computes several at once. What is longer than the model's positions is
    truncated, the longer text first.
    """

    def _sanitize_parameters(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        return {}, {}, {}

    def preprocess(self, input_: Any, **_: Any) -> dict[str, Any]:
        """Tokenizes a pair: `text` and `text_pair`."""
        if not isinstance(input_, dict) or not {"text", "text_pair"} <= input_.keys():
            raise UserError(f"next-sentence-prediction takes {{'text': ..., 'text_pair': ...}}, got {shown(input_)}")
        longest = longest_input(self.tokenizer, self.model.config.max_position_embeddings)
        encoded = self.tokenizer(
            input_["text"],
            input_["text_pair"],
            truncation=True,
            max_length=longest,
            split_special_tokens=True,  # see `tokenized`
            return_tensors="pt",
        )
        return dict(encoded)

    def _forward(self, input_tensors: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {"logits": self.model(**input_tensors).logits}

    def postprocess(self, model_outputs: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Returns the likelier label, `IsNext` or `NotNext`, and its probability."""
        probabilities = model_outputs["logits"][0].float().softmax(-1).tolist()
        best = probabilities.index(max(probabilities))
        return {"label": LABELS[best], "score": probabilities[best]}


class ExtractiveQuestionAnsweringPipeline(_ReadsText, ChunkPipeline):  # type: ignore[misc]
    """Finds the span of a passage, of any length, that answers a question.

        import bert_repro
        from transformers import pipeline

        answer = pipeline("extractive-question-answering", model="org/bert-squad")
        print(answer(question="Where did she work?", context="Marie Curie worked in Paris."))
        # {"score": 0.97, "start": 22, "end": 27, "answer": "Paris"}

    Also takes `{"question": ..., "context": ...}` or a list of them; `batch_size` computes several windows at once.

    Parameters of the pipeline or of a call:
        top_k: answers to return; above 1 a list of them, most probable first after the one that would be given.
        handle_impossible_answer: whether a question may have no answer, given as an empty one. Default: whether the
            model stores a threshold for it, as one fine-tuned on SQuAD v2.0 does.
        null_score_diff_threshold: no answer where its score exceeds the best answer's by more. Default: the model's,
            else 0.
        max_seq_length, max_query_length, doc_stride, n_best_size, max_answer_length, decoding: as in run_squad.py.

    `score` is the probability among the `n_best_size` best answers, `answer` the characters `start` to `end` of the
    passage.
    """

    def __call__(
        self, inputs: Any = None, *, question: str | None = None, context: str | None = None, **parameters: Any
    ) -> Any:
        """Answers one question or several; see the class.

        Args:
            inputs: a mapping with `question` and `context`, or a list of them.
            question: the question, in place of `inputs`.
            context: its passage.
            parameters: see the class.

        Raises:
            UserError: a question or a passage is missing or empty.
        """
        inputs = {"question": question, "context": context} if inputs is None else inputs
        single = isinstance(inputs, dict)
        # As a list even when there is one, so that its windows are batched.
        answers = super().__call__([inputs] if single else list(inputs), **parameters)
        return answers[0] if single else answers

    def _sanitize_parameters(self, **settings: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        given = {name: value for name, value in settings.items() if value is not None}
        windows = {name: given.pop(name) for name in _WINDOWS if name in given}
        return windows, {}, given

    def preprocess(self, input_: Any, **windows: Any) -> Iterator[dict[str, Any]]:
        """Tokenizes a question and its passage into the windows that slide over it."""
        names, fits = ("question", "context"), "extractive-question-answering takes {'question': ..., 'context': ...}"
        if not isinstance(input_, dict) or not all(str(input_.get(name) or "").strip() for name in names):
            raise UserError(f"{fits}, got {shown(input_)}")
        question, context = input_["question"], input_["context"]
        positions = self.model.config.max_position_embeddings
        length = windows.get("max_seq_length", min(_LONGEST_WINDOW, longest_input(self.tokenizer, positions)))
        if length > positions:
            raise UserError(f"max_seq_length is {length}; the model has {positions} positions")
        question_length = min(_LONGEST_QUESTION, length // 2)
        task = self._task(**{"max_seq_length": length, "max_query_length": question_length, **windows})
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
        rest = {name: value for name, value in input_tensors.items() if name not in _INPUTS}
        return {"scores": scores, **rest}

    def postprocess(
        self,
        model_outputs: list[dict[str, Any]],
        top_k: int = 1,
        handle_impossible_answer: bool | None = None,
        null_score_diff_threshold: float | None = None,
        **decoding: Any,
    ) -> Any:
        """Returns the best answers over all windows of a question."""
        stored = getattr(self.model.config, "null_score_diff_threshold", None)
        threshold = stored if null_score_diff_threshold is None else null_score_diff_threshold
        nullable = threshold is not None if handle_impossible_answer is None else handle_impossible_answer
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
        given = "" if nullable and answer.null_odds > (threshold or 0.0) else answer.text
        found = [
            {"score": entry["probability"], "start": spans[entry["text"]][0], "end": spans[entry["text"]][1],
             "answer": entry["text"]}
            for entry in sorted(answer.best, key=lambda entry: (entry["text"] != given, -entry["probability"]))
            if entry["text"] in spans
        ]  # fmt: skip
        found = found or [{"score": 0.0, "start": 0, "end": 0, "answer": ""}]
        return found[0] if top_k == 1 else found[:top_k]

    def _task(self, **settings: Any) -> SquadTask:
        config = replace(SquadConfig(model_name_or_path="-", do_eval=True), **settings)
        return replace(SQUAD, settings=SquadSettings.of(config), tokenizer=self.tokenizer)


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
