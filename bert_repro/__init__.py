"""The BERT of Devlin et al. (2019) as a Hugging Face plugin."""

__version__ = "0.1.0"
