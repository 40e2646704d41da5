"""Pipelines for three tasks that transformers has none for, registered by name; see `transformers.pipeline`.

`extractive-question-answering` takes any checkpoint with a question-answering head, `next-sentence-prediction` any with
BERT's, `sentence-scoring` any masked language model. The other heads work with transformers' own pipelines. Importing
`bert_repro` is enough: this module is imported as soon as transformers' pipelines are.
"""

from transformers import AutoModelForMaskedLM, AutoModelForNextSentencePrediction, AutoModelForQuestionAnswering
from transformers.pipelines import PIPELINE_REGISTRY

from bert_repro.inference.pipelines.next_sentence import NextSentencePipeline
from bert_repro.inference.pipelines.question_answering import ExtractiveQuestionAnsweringPipeline
from bert_repro.inference.pipelines.sentence_scoring import SentenceScoringPipeline

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
PIPELINE_REGISTRY.register_pipeline(
    "sentence-scoring",
    pipeline_class=SentenceScoringPipeline,
    pt_model=AutoModelForMaskedLM,
    type="text",
)

__all__ = ["ExtractiveQuestionAnsweringPipeline", "NextSentencePipeline", "SentenceScoringPipeline"]
