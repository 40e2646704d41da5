"""Settings of every run: each once, with its help text, unit and source.

The field metadata is the single source of three things: the recipes' flags (`bert_repro.cli`), the configuration
reference (docs/CONFIGURATION.md) and the list of choices where the paper and the original implementation differ or are
silent (docs/DEVIATIONS.md). `source` says who decides the default: "paper", "original implementation"
(google-research/bert), "transformers" (a name and meaning its users know) or "ours".
"""

from bert_repro.configs.base import (
    GROUPS,
    Config,
    Range,
    SettingSource,
    aliases_of,
    current_names,
    first_names,
    looks_like_a_folder,
    require,
    require_checkpoints,
    require_places,
    setting,
)
from bert_repro.configs.corpus import CorpusConfig, TextConfig, TokenizerConfig
from bert_repro.configs.finetuning import SWEPT, CustomDataConfig, FinetuningConfig
from bert_repro.configs.prediction import GlueZipConfig, PredictConfig, SquadScoringConfig
from bert_repro.configs.pretraining import AuditConfig, CurveComparisonConfig, ExampleConfig, Phase, PretrainingConfig
from bert_repro.configs.publishing import (
    CardConfig,
    ConversionConfig,
    CorpusPushConfig,
    ExtractionConfig,
    OnnxConfig,
    PushConfig,
    SentenceScoringConfig,
)
from bert_repro.configs.reproduction import QuickstartConfig, ReportConfig, StudyConfig
from bert_repro.configs.tasks import (
    GlueConfig,
    NerConfig,
    SquadConfig,
    SwagConfig,
    TriviaqaConfig,
)
from bert_repro.configs.training import AdapterConfig, DryRunConfig, OptimizerConfig, RunConfig

__all__ = [  # noqa: RUF022 - the order of the configuration reference
    "GROUPS",
    "Range",
    "SettingSource",
    "setting",
    "Config",
    "require",
    "require_checkpoints",
    "require_places",
    "looks_like_a_folder",
    "aliases_of",
    "current_names",
    "first_names",
    "TextConfig",
    "TokenizerConfig",
    "CorpusConfig",
    "CorpusPushConfig",
    "OptimizerConfig",
    "DryRunConfig",
    "AdapterConfig",
    "RunConfig",
    "Phase",
    "ExampleConfig",
    "PretrainingConfig",
    "AuditConfig",
    "CurveComparisonConfig",
    "FinetuningConfig",
    "SWEPT",
    "CustomDataConfig",
    "GlueConfig",
    "SwagConfig",
    "NerConfig",
    "PredictConfig",
    "ExtractionConfig",
    "SentenceScoringConfig",
    "SquadConfig",
    "SquadScoringConfig",
    "GlueZipConfig",
    "CardConfig",
    "PushConfig",
    "OnnxConfig",
    "ConversionConfig",
    "TriviaqaConfig",
    "StudyConfig",
    "ReportConfig",
    "QuickstartConfig",
]
