"""The BERT of Devlin et al. (2019) as a Hugging Face plugin. Importing it registers the model type `bert_repro`."""

from .models import HEADS
from .models.configuration_bert_repro import BertReproConfig
from .models.modeling_bert_repro import (
    BertReproForCausalLM,
    BertReproForMaskedLM,
    BertReproForMultipleChoice,
    BertReproForNextSentencePrediction,
    BertReproForPreTraining,
    BertReproForQuestionAnswering,
    BertReproForSequenceClassification,
    BertReproForTokenClassification,
    BertReproModel,
)

__version__ = "0.1.0"

__all__ = [
    "HEADS",
    "BertReproConfig",
    "BertReproForCausalLM",
    "BertReproForMaskedLM",
    "BertReproForMultipleChoice",
    "BertReproForNextSentencePrediction",
    "BertReproForPreTraining",
    "BertReproForQuestionAnswering",
    "BertReproForSequenceClassification",
    "BertReproForTokenClassification",
    "BertReproModel",
    "__version__",
]
