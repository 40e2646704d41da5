"""Settings of every recipe: each once, with its help text. A room of the package has its settings in the file of its
name; `presets` holds what the paper states."""

from bert_repro.configs.base import (
    LOCATIONS,
    Config,
    decides_result,
    deciding_settings,
    looks_like_a_folder,
    require_paths,
    setting,
)
from bert_repro.configs.conversion import ConversionConfig
from bert_repro.configs.corpus import CorpusConfig, TextConfig, TextSource, TokenizerConfig
from bert_repro.configs.finetuning import SWEPT, CustomDataConfig, FinetuningConfig
from bert_repro.configs.hub import CardConfig, CorpusPushConfig, PushConfig
from bert_repro.configs.inference import ExtractionConfig, OnnxConfig, PredictConfig, SentenceScoringConfig
from bert_repro.configs.pretraining import AuditConfig, CurveComparisonConfig, ExampleConfig, Phase, PretrainingConfig
from bert_repro.configs.protocols import ModelSettings, TrainingSettings
from bert_repro.configs.reproduction import ClaimsConfig, ReplayConfig, ReportConfig, SeenConfig, StudyConfig
from bert_repro.configs.tasks import (
    FAMILIES,
    GlueConfig,
    GlueZipConfig,
    NerConfig,
    SquadConfig,
    SquadScoringConfig,
    SwagConfig,
    TriviaqaConfig,
)
from bert_repro.configs.training import AdapterConfig, DryRunConfig, OptimizerConfig, RunConfig
