"""What each model class is to the Hub: its Auto class, its pipeline, and a neutral example."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class HubTask:
    """What a model class is to the Hub.

    Args:
        auto_class: the class of transformers that loads it.
        pipeline_tag: the Hub's name for its task; None: the Hub has none.
        example: an input that quotes nobody, for runs whose data has no example to show.
        widget: the inputs of the Hub's widget; (): it has none.
    """

    auto_class: str
    pipeline_tag: str | None = None
    example: Mapping[str, Any] = field(default_factory=dict)
    widget: tuple[str, ...] = ()


_MASKED = {"text": "Paris is the [MASK] of France."}
_REVIEW = {"text": "A film that never lets you go."}
_NAMES = {"text": "Marie Curie worked in Paris."}
_SENTENCES = {"text": "She opened the window.", "text_pair": "Fresh air came in."}
_CHOICE = {"prompt": "She opened the window", "choices": ["and fresh air came in.", "and swallowed the key."]}
_QUESTION = {"text": "Where did Marie Curie work?", "context": "Marie Curie worked in Paris."}
_PAIR = {"text": "A man is playing a guitar.", "text_pair": "Someone makes music."}

HUB_TASKS: Mapping[str, HubTask] = {
    "ForPreTraining": HubTask("AutoModelForPreTraining", "fill-mask", _MASKED, ("text",)),
    "ForMaskedLM": HubTask("AutoModelForMaskedLM", "fill-mask", _MASKED, ("text",)),
    "ForCausalLM": HubTask("AutoModelForCausalLM", "text-generation"),
    "ForNextSentencePrediction": HubTask("AutoModelForNextSentencePrediction", None, _SENTENCES),
    "ForSequenceClassification": HubTask(
        "AutoModelForSequenceClassification", "text-classification", _REVIEW, ("text",)
    ),
    "ForTokenClassification": HubTask("AutoModelForTokenClassification", "token-classification", _NAMES, ("text",)),
    "ForQuestionAnswering": HubTask("AutoModelForQuestionAnswering", "question-answering", _QUESTION, tuple(_QUESTION)),
    "ForMultipleChoice": HubTask("AutoModelForMultipleChoice", "multiple-choice", _CHOICE),
    "Model": HubTask("AutoModel", "feature-extraction"),
}
"""Ending of the class name, ours and transformers' alike -> the task."""


def hub_task_of(class_name: str) -> HubTask:
    """Returns the entry of `HUB_TASKS` for a model class.

    Raises:
        ValueError: the class does not belong to the BERT family.
    """
    for ending, task in HUB_TASKS.items():
        if class_name.endswith(ending) and class_name.isidentifier():
            return task
    raise ValueError(f"{class_name} is not a BERT model. Its name must end in one of: {', '.join(HUB_TASKS)}")


def example_of(results: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the input of a card's snippet: an example of the run's own data, or a neutral one for the task."""
    class_name = results.get("model", {}).get("class")
    data = results.get("data", {})
    neutral: Mapping[str, Any] = {}
    if class_name:
        neutral = hub_task_of(class_name).example
        reads_pairs = len(data.get("text_columns", ())) == 2
        if class_name.endswith("ForSequenceClassification") and reads_pairs:
            neutral = _PAIR
    own = data.get("example")
    if isinstance(own, Mapping) and own.keys() == neutral.keys():
        return own
    return neutral
