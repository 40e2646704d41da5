"""The model family, registered with transformers' Auto classes under the model type `bert_repro`."""

import transformers

from . import modeling_bert_repro
from .configuration_bert_repro import AUTO_CLASSES, BertReproConfig

HEADS: dict[str, type[modeling_bert_repro.BertReproPreTrainedModel]] = {
    auto_class: getattr(modeling_bert_repro, head.ours) for auto_class, head in AUTO_CLASSES.items()
}
"""Auto class of transformers -> our class."""

transformers.AutoConfig.register(BertReproConfig.model_type, BertReproConfig, exist_ok=True)
for _auto_class, _model_class in HEADS.items():
    getattr(transformers, _auto_class).register(BertReproConfig, _model_class, exist_ok=True)
transformers.AutoTokenizer.register(BertReproConfig, fast_tokenizer_class=transformers.BertTokenizer, exist_ok=True)
