"""A demo of published BERT models: fill-mask, classification, entities, question answering, next sentence prediction.

    pip install -r recipes/space/requirements.txt
    python recipes/space/app.py runs/bert runs/sst2 runs/ner runs/squad

Models are folders or ids on the Hub. Without arguments they are those that README.md lists under `models:`. README.md
also says how to publish the demo as a Space.
"""

import logging
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoConfig, Pipeline, pipeline

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read as gradio is imported: nobody is counted
import gradio as gr

HERE = Path(__file__).resolve().parent
if not (HERE / "bert_repro").exists():  # in a clone; in a Space the package lies beside this file
    sys.path.insert(0, str(HERE.parents[1]))
import bert_repro  # noqa: E402, F401  (adds the pipelines for questions and for next sentences)
from bert_repro.errors import UserError  # noqa: E402
from bert_repro.models.loading import longest_input  # noqa: E402

HEADS = {
    "fill-mask": ("ForMaskedLM", "ForPreTraining"),
    "text-classification": ("ForSequenceClassification",),
    "token-classification": ("ForTokenClassification",),
    "extractive-question-answering": ("ForQuestionAnswering",),
    "next-sentence-prediction": ("ForNextSentencePrediction", "ForPreTraining"),
}
"""Pipeline -> endings of the model classes that have its head."""
PASSAGE = (
    "Marie Curie was born in Warsaw in 1867. She studied at the University of Paris, where she later became the first "
    "woman to teach as a professor. In 1903 she shared the Nobel Prize in Physics with Pierre Curie and Becquerel."
)
CSS = """
.gradio-container, .gradio-container main {width: 100%; max-width: 46rem !important; margin: auto}
input, textarea {font-size: 16px !important}  /* phones zoom into smaller ones */
@media (max-width: 640px) {.tab-container button {padding: 0 0.45rem !important; font-size: 0.85rem !important}}
"""
Outputs = list[Any]


def listed_models() -> list[str]:
    """The models of the command line, else those of README.md's metadata."""
    metadata = yaml.safe_load((HERE / "README.md").read_text("utf-8").split("---")[1])
    return sys.argv[1:] or metadata.get("models") or []


def offered(task: str) -> list[str]:
    """The listed models that have the head; also those that cannot be read, which say so when they are used."""
    found = []
    for model in listed_models():
        try:
            fits = class_of(model).endswith(HEADS[task])
        except UserError:
            fits = True
        found += [model] if fits else []
    return found


def class_of(model: str) -> str:
    """The class that a model was saved from, for example BertForMaskedLM."""
    try:
        return (AutoConfig.from_pretrained(model, trust_remote_code=False).architectures or ["model without a class"])[
            0
        ]
    except (OSError, ValueError) as error:
        raise UserError(f"No model {model}: it is neither a folder here nor an id on the Hub.") from error


@lru_cache(maxsize=4)
def load(task: str, model: str) -> Pipeline:
    """The pipeline of a task, with a model that has its head."""
    if not model:
        raise UserError("Name a model: a folder or an id on the Hub.")
    saved = class_of(model)
    if not saved.endswith(HEADS[task]):
        heads = " or ".join(f"Bert{head}" for head in HEADS[task])
        raise UserError(f"{model} is a {saved}, which cannot do this; take a {heads}.")
    # A visitor may name any model: neither its code nor a pickle of its weights is read.
    return pipeline(task, model=model, trust_remote_code=False, model_kwargs={"use_safetensors": True})


def check(found: Pipeline, *texts: str, in_windows: bool = False) -> None:
    """Refuses empty texts, and those that are longer than the model reads at once."""
    if not all(text.strip() for text in texts):
        raise UserError("Write a text first: a field is empty.")
    tokens = len(found.tokenizer(*texts)["input_ids"])
    most = longest_input(found.tokenizer, found.model.config.max_position_embeddings)
    if tokens > most and not in_windows:
        raise UserError(f"The text has {tokens} tokens; this model reads at most {most} at once.")


def fill_mask(model: str, text: str) -> Outputs:
    """The five likeliest words in place of [MASK]."""
    found = load("fill-mask", model)
    check(found, text)
    if text.count(found.tokenizer.mask_token) != 1:
        raise UserError(f"Write {found.tokenizer.mask_token} once, where a word is to be guessed.")
    return [{guess["token_str"]: guess["score"] for guess in found(text, top_k=5)}]


def classify(model: str, text: str, second: str) -> Outputs:
    """Every label of a text, or of a pair, with its probability."""
    found = load("text-classification", model)
    pair = bool(second.strip())
    check(found, text, *([second] if pair else []))
    labels = found({"text": text, "text_pair": second} if pair else text, top_k=None)
    if len(labels) == 1:  # a regression, whose number is no probability
        return [f"{labels[0]['label']}: {labels[0]['score']:.2f}"]
    return [{label["label"]: label["score"] for label in labels}]


def find_entities(model: str, text: str) -> Outputs:
    """The text with its entities marked."""
    found = load("token-classification", model)
    check(found, text)
    entities = found(text, aggregation_strategy="first")
    marks = [{"entity": entity["entity_group"], "start": entity["start"], "end": entity["end"]} for entity in entities]
    return [{"text": text, "entities": marks}]


def answer_question(model: str, passage: str, question: str) -> Outputs:
    """The three best answers, and the passage with the best one marked."""
    found = load("extractive-question-answering", model)
    check(found, passage, question, in_windows=True)
    answers = found(question=question, context=passage, top_k=3)
    best = answers[0]
    marks = [{"entity": "answer", "start": best["start"], "end": best["end"]}] if best["answer"] else []
    scores = {answer["answer"] or "(no answer)": answer["score"] for answer in answers}
    return [scores, {"text": passage, "entities": marks}]


def predict_next(model: str, first: str, second: str) -> Outputs:
    """Whether the second sentence follows the first one."""
    found = load("next-sentence-prediction", model)
    check(found, first, second)
    best = found({"text": first, "text_pair": second})
    score = best["score"] if best["label"] == "IsNext" else 1 - best["score"]
    return [{"follows": score, "does not follow": 1 - score}]


def with_message(answer: Callable[..., Outputs], outputs: int) -> Callable[..., Outputs]:
    """Puts a message before the outputs: one line that says what went wrong, hidden when nothing did."""

    def answered(*values: str | None) -> Outputs:
        try:
            return [gr.Markdown(visible=False), *answer(*(value or "" for value in values))]
        except UserError as error:
            message = str(error)
        except Exception as error:
            logging.exception("%s failed", answer.__name__)
            message = f"That did not work: {' '.join(str(error).split())[:300]}"
        return [gr.Markdown(f"⚠️ {message}", visible=True), *[None] * outputs]

    return answered


def tab(
    title: str, task: str, answer: Callable[..., Outputs], inputs: list[Any], verb: str, outputs: list[Any]
) -> None:
    """One tab: the model, what is asked, a button, a place for a message, the answer."""
    with gr.Tab(title):
        known = offered(task)
        model = gr.Textbox(known[0] if known else "", label="Model: a folder or an id on the Hub", max_lines=1)
        if len(known) > 1:
            gr.Examples([[name] for name in known], [model], label="Models listed here")
        for component in inputs:
            component.render()
        button = gr.Button(verb, variant="primary")
        message = gr.Markdown(visible=False, container=True)
        for component in outputs:
            component.render()
        function = with_message(answer, len(outputs))
        button.click(function, [model, *inputs], [message, *outputs], api_name=answer.__name__)


def text(label: str, value: str = "", lines: int = 2) -> gr.Textbox:
    """A field to write into, placed later."""
    return gr.Textbox(value, label=label, lines=lines, render=False)


def probabilities(label: str = "Probabilities") -> gr.Label:
    """Bars of probabilities, placed later."""
    return gr.Label(label=label, render=False)


def marked(label: str, colour: str | None = None) -> gr.HighlightedText:
    """A text with marked spans, placed later."""
    return gr.HighlightedText(label=label, render=False, color_map={"answer": colour} if colour else None)


def build() -> gr.Blocks:
    """The page."""
    with gr.Blocks(title="BERT, reproduced") as page:
        gr.Markdown("## BERT, reproduced\nModels made with bert_repro. What they say may be wrong.")
        given = [text("Text with [MASK]", "Paris is the [MASK] of France.")]
        tab("Mask", "fill-mask", fill_mask, given, "Guess the word", [probabilities()])
        given = [text("Text", "A film that never lets you go."), text("Second text, for models of pairs")]
        tab("Classify", "text-classification", classify, given, "Classify", [probabilities()])
        given = [text("Text", PASSAGE, lines=4)]
        tab("Entities", "token-classification", find_entities, given, "Find entities", [marked("Entities")])
        given = [text("Passage", PASSAGE, lines=4), text("Question", "Where was Marie Curie born?", lines=1)]
        shown = [probabilities("Answers"), marked("In the passage", "green")]
        tab("Questions", "extractive-question-answering", answer_question, given, "Answer", shown)
        given = [text("First sentence", "She opened the window."), text("Second sentence", "Fresh air came in.")]
        tab("Next", "next-sentence-prediction", predict_next, given, "Does it follow?", [probabilities()])
    return page


if __name__ == "__main__":
    system = ["system-ui", "sans-serif"]  # no fonts from elsewhere
    theme = gr.themes.Soft(font=system, font_mono=system)
    theme.set(button_primary_background_fill="*primary_600", button_primary_background_fill_hover="*primary_700")
    build().launch(theme=theme, css=CSS)  # the darker button: white on the theme's own is hard to read
