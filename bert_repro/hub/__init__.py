"""From a trained model to a folder that anyone loads: `export` writes it, `card` describes it, `push` uploads it."""

from bert_repro.hub.export import export_checkpoint
from bert_repro.hub.push import push_folder

__all__ = ["export_checkpoint", "push_folder"]
