"""The BERT of Devlin et al. (2019): encoder, pre-training heads, fine-tuning heads.

The file reads from top to bottom: attention, encoder, pooler and heads, then the nine classes that users load. Shapes
are written with these letters:

    B batch        S sequence, padding included     T tokens of all packed sequences
    H hidden       A attention heads                D = H / A
    V vocabulary   P predicted positions            N packed sequences

What is notable:

- Parameter names are those of transformers' BERT, so state dicts can be exchanged strictly in both directions, and a
  saved folder loads in transformers without this file. Nothing here is derived from its classes.
- Weights start from a normal distribution truncated at two standard deviations, as in the original implementation.
- Padded input is (B, S). Packed input is (1, T): sequences joined without padding, separated by `cu_seq_lens_q`. Heads
  that read one token of a sequence read each sequence's own. Attention dropout is applied on every path.
- Masked-language heads decode predicted positions only (`prediction_positions`), with no data-dependent shape.
- Under autocast the layers that classify compute in float32, so that half precision does not round scores together.
- `is_decoder=True` makes the left-to-right model of Table 5: causal attention, and sequence heads that read the last
  token.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    CausalLMOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    NextSentencePredictorOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from .configuration_bert_repro import BertReproConfig

IGNORED_LABEL = -100
PACKING_ARGUMENTS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


# --- Attention ------------------------------------------------------------------------------------------------------


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes scaled dot-product attention, written out: the one path that returns its probabilities.

    Args:
        module: the calling attention layer.
        query: (B, A, S, D).
        key: (B, A, S, D).
        value: (B, A, S, D).
        attention_mask: (B, 1, S, S), added to the scores.
        scaling: factor on the scores, D ** -0.5.
        dropout: dropout probability on the attention probabilities.
        kwargs: arguments of other attention functions.

    Returns:
        The attended values (B, S, A, D), and the attention probabilities (B, A, S, S).
    """
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask

    # Dropout on the probabilities, as in the original implementation: complete tokens are dropped to attend to.
    probabilities = F.dropout(scores.softmax(dim=-1), p=dropout, training=module.training)
    return torch.matmul(probabilities, value).transpose(1, 2), probabilities


def packed_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Computes attention of packed sequences, each within its own bounds, dropout included.

    On CUDA it is one call of PyTorch's own kernels for sequences of any lengths: the flash kernel in half precision,
    the memory-efficient kernel in 32 bits and on devices older than Ampere. On other devices it is a loop over
    sequences.

    Args:
        module: the calling attention layer. Its `is_causal` decides whether later tokens are hidden.
        query: (1, A, T, D).
        key: (1, A, T, D).
        value: (1, A, T, D).
        attention_mask: unused, since packed input has no padding.
        scaling: factor on the scores, D ** -0.5.
        dropout: dropout probability on the attention probabilities.
        cu_seq_lens_q: (N + 1,) offset of each sequence, then T.
        cu_seq_lens_k: the same offsets again, because flash kernels require them twice.
        max_length_q: longest sequence, in tokens.
        max_length_k: the same length again.
        kwargs: arguments of other attention functions.

    Returns:
        The attended values (1, T, A, D), and no probabilities.

    Raises:
        ValueError: the offsets are missing.
    """
    if cu_seq_lens_q is None:
        raise ValueError(
            "packed_sdpa attends to packed input only: give cu_seq_lens_q, or use attn_implementation='sdpa'"
        )
    is_causal = bool(module.is_causal)
    has_kernel_alignment = query.shape[-1] * query.dtype.itemsize % 16 == 0
    if query.is_cuda and has_kernel_alignment and cu_seq_lens_k is not None:
        # PyTorch's public functions that accept offsets have no dropout. These are the kernels that they call.
        offsets = (cu_seq_lens_q.int(), cu_seq_lens_k.int(), max_length_q, max_length_k)
        if has_flash_kernel(query):
            # The flash kernel reads (T, A, D).
            states = [tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value)]
            flash = torch.ops.aten._flash_attention_forward
            attended, *_ = flash(*states, *offsets, dropout, is_causal, False, scale=scaling)
            return attended.unsqueeze(0), None
        # The memory-efficient kernel reads (1, T, A, D).
        states = [tensor.transpose(1, 2) for tensor in (query, key, value)]
        return efficient_attention(*states, None, *offsets, dropout, int(is_causal), True, scale=scaling), None

    # Elsewhere: one sequence after the other, (1, A, length, D) each.
    lengths = cu_seq_lens_q.diff().tolist()
    queries, keys, values = (torch.split(tensor, lengths, dim=2) for tensor in (query, key, value))
    attended_sequences: list[torch.Tensor] = []
    for own_query, own_key, own_value in zip(queries, keys, values, strict=True):
        attended = F.scaled_dot_product_attention(
            own_query, own_key, own_value, dropout_p=dropout, is_causal=is_causal, scale=scaling
        )
        attended_sequences.append(attended)
    return torch.cat(attended_sequences, dim=2).transpose(1, 2), None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def efficient_attention(*states: Any, **options: Any) -> torch.Tensor:
    """Calls PyTorch's memory-efficient kernel outside of compiled graphs, in which its backward pass cannot be "
    "traced."""
    attended: torch.Tensor = torch.ops.aten._efficient_attention_forward(*states, **options)[0]
    return attended


def has_flash_kernel(query: torch.Tensor) -> bool:
    """Returns whether PyTorch's flash kernel supports these heads.

    Args:
        query: (1, A, T, D) on CUDA, D a multiple of 8 in half precision.

    Returns:
        True for half precision, D up to 256, on Ampere and later.
    """
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    return is_half and query.shape[-1] <= 256 and torch.cuda.get_device_capability(query.device) >= (8, 0)


ALL_ATTENTION_FUNCTIONS.register("packed_sdpa", packed_attention_forward)


class BertReproSelfAttention(nn.Module):
    """Multi-head self-attention (paper, section 3; Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__()
        self.config = config
        self.head_size = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_size**-0.5
        self.is_causal = config.is_decoder
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, attn_implementation: str, **packing: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attends from every token to every token that the mask allows.

        Args:
            hidden_states: (B, S, H).
            attention_mask: mask in the form that the attention function reads, or None.
            attn_implementation: name of the attention function.
            packing: the four packing arguments, or none.

        Returns:
            (B, S, H), and the attention probabilities if the function returns them.
        """
        # Project to queries, keys and values, and give each head its part: (B, A, S, D).
        by_head = (*hidden_states.shape[:-1], -1, self.head_size)
        query = self.query(hidden_states).view(by_head).transpose(1, 2)
        key = self.key(hidden_states).view(by_head).transpose(1, 2)
        value = self.value(hidden_states).view(by_head).transpose(1, 2)

        attend = ALL_ATTENTION_FUNCTIONS.get_interface(attn_implementation, eager_attention_forward)
        attended, probabilities = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.dropout.p if self.training else 0.0,
            scaling=self.scaling,
            **packing,
        )
        # Join the heads again.
        return attended.reshape(hidden_states.shape), probabilities


# --- Encoder --------------------------------------------------------------------------------------------------------


class BertReproEmbeddings(nn.Module):
    """Sum of word, segment and position embeddings, normalized (paper, Figure 2)."""

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
    ) -> torch.Tensor:
        """Embeds (B, S) ids as (B, S, H). By default all tokens are in segment 0 and positions count from 0."""
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if token_type_ids is None:
            token_type_ids = torch.zeros((1, 1), dtype=torch.long, device=words.device)
        if position_ids is None:
            position_ids = torch.arange(words.shape[1], device=words.device).unsqueeze(0)
        embeddings = words + self.token_type_embeddings(token_type_ids) + self.position_embeddings(position_ids)
        return cast(torch.Tensor, self.dropout(self.LayerNorm(embeddings)))


class BertReproSublayerOutput(nn.Module):
    """End of both sublayers: dense -> dropout -> add the residual -> LayerNorm (post-LN)."""

    def __init__(self, config: BertReproConfig, input_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(input_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Maps (B, S, input size) and the (B, S, H) input of the sublayer to (B, S, H)."""
        hidden_states = self.dropout(self.dense(hidden_states))
        return cast(torch.Tensor, self.LayerNorm(hidden_states + residual))


class BertReproAttention(nn.Module):
    """Self-attention sublayer."""

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__()
        self.self = BertReproSelfAttention(config)
        self.output = BertReproSublayerOutput(config, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Maps (B, S, H) to (B, S, H)."""
        attended, _ = self.self(hidden_states, *args, **kwargs)
        return cast(torch.Tensor, self.output(attended, hidden_states))


class BertReproIntermediate(nn.Module):
    """First half of the feed-forward sublayer: H to 4H, then the activation."""

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Maps (B, S, H) to (B, S, 4H)."""
        return cast(torch.Tensor, self.activation(self.dense(hidden_states)))


class BertReproLayer(GradientCheckpointingLayer):  # type: ignore[misc]
    """One Transformer layer: self-attention, then feed-forward (paper, section 3)."""

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__()
        self.attention = BertReproAttention(config)
        self.intermediate = BertReproIntermediate(config)
        self.output = BertReproSublayerOutput(config, config.intermediate_size)

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Maps (B, S, H) to (B, S, H)."""
        hidden_states = self.attention(hidden_states, *args, **kwargs)
        return cast(torch.Tensor, self.output(self.intermediate(hidden_states), hidden_states))


class BertReproEncoder(nn.Module):
    """The L Transformer layers, one after the other."""

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertReproLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Maps (B, S, H) to (B, S, H)."""
        for layer in self.layer:
            hidden_states = layer(hidden_states, *args, **kwargs)
        return hidden_states


# --- Pooler and prediction head -------------------------------------------------------------------------------------


class BertReproPooler(nn.Module):
    """Dense layer and tanh over one token of each sequence (original implementation)."""

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, token_states: torch.Tensor) -> torch.Tensor:
        """Maps (B, H), one token of each sequence, to (B, H)."""
        return cast(torch.Tensor, self.dense(token_states).tanh())


def gather_pool_tokens(
    hidden_states: torch.Tensor,
    pool_token: str,
    attention_mask: torch.Tensor | None = None,
    cu_seq_lens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the state of each sequence's first or last token.

    Args:
        hidden_states: (B, S, H), or (1, T, H) when packed.
        pool_token: `first`, or `last` for the last token that is not padding.
        attention_mask: (B, S), 1 on tokens and 0 on padding, on either side.
        cu_seq_lens: (N + 1,) offsets of packed sequences.

    Returns:
        (B, H), or (N, H) when packed.

    Raises:
        ValueError: the last token is asked for under a mask that does not mark padding.
    """
    if cu_seq_lens is not None:
        num_sequences = cu_seq_lens.shape[0] - 1
        if pool_token == "first":
            # Offsets padded to a fixed count end in empty sequences at T. These get some state, which no label uses.
            tokens = cu_seq_lens.narrow(0, 0, num_sequences).clamp(max=hidden_states.shape[1] - 1)
        else:
            tokens = cu_seq_lens.narrow(0, 1, num_sequences) - 1
        return hidden_states.squeeze(0).index_select(0, tokens)
    if pool_token == "first":
        return hidden_states[:, 0]
    if attention_mask is None:
        return hidden_states[:, -1]
    if attention_mask.dim() != 2:
        raise ValueError(
            f"pool_token='last' needs an attention_mask of shape (B, S), got {tuple(attention_mask.shape)}"
        )
    # The last position whose mask is not 0; padding may be on either side.
    positions = torch.arange(hidden_states.shape[1], device=hidden_states.device)
    last = (positions * (attention_mask != 0)).argmax(dim=-1)
    return hidden_states[torch.arange(len(last), device=last.device), last]


class BertReproPredictionTransform(nn.Module):
    """Dense -> activation -> LayerNorm in front of the decoder (original implementation)."""

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Maps (..., H) to (..., H)."""
        return cast(torch.Tensor, self.LayerNorm(self.activation(self.dense(hidden_states))))


class BertReproPredictionHead(nn.Module):
    """Token prediction: transform, then the word embeddings as decoder, with a bias per token (original code)."""

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__()
        self.transform = BertReproPredictionTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Maps (..., H) to logits (..., V)."""
        return cast(torch.Tensor, self.decoder(self.transform(hidden_states)))


def float32_logits(layer: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """Computes the logits of a classification layer in at least 32 bits, under autocast too.

    In bfloat16 logits have three significant digits. Scores of different texts would be rounded to the same number:
    1,500 regression outputs had 385 distinct values.

    Args:
        layer: a linear layer, or an adapter around one.
        states: (..., H), in any precision.

    Returns:
        (..., number of outputs), in the layer's precision, but not under autocast's.
    """
    # Without autocast there is nothing to switch off, and exporters see a plain layer.
    if not torch.is_autocast_enabled(states.device.type):
        return cast(torch.Tensor, layer(states))
    with torch.autocast(states.device.type, enabled=False):
        return cast(torch.Tensor, layer(states.to(next(layer.parameters()).dtype)))


def mean_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, ignore_index: int = IGNORED_LABEL) -> torch.Tensor:
    """Computes the mean cross-entropy over the labels that count, in at least 32 bits.

    Args:
        logits: (..., number of classes).
        labels: (...) class ids, with as many elements as there are logits rows.
        ignore_index: label that does not count.

    Returns:
        A scalar. Zero, not NaN, when no label counts: a batch without a prediction must not poison the run.
    """
    labels = labels.flatten()
    logits = logits.flatten(0, -2)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(logits, labels, ignore_index=ignore_index, reduction="sum")
    return total / (labels != ignore_index).sum().clamp(min=1)


# --- Base class and encoder -----------------------------------------------------------------------------------------


def truncated_normal(shape: torch.Size, device: torch.device) -> torch.Tensor:
    """Draws from the standard normal distribution, and again in place of draws beyond two (original implementation).

    PyTorch's own function draws the complete tensor again, which takes seven times as long and differs between its
    versions.

    Args:
        shape: shape of the tensor.
        device: device to draw on.

    Returns:
        The draws, in 32 bits, all within [-2, 2].
    """
    draws = torch.randn(shape, device=device, dtype=torch.float32)
    # A tensor on the meta device has no values.
    if draws.is_meta:
        return draws
    flat = draws.view(-1)
    beyond = (flat.abs() > 2).nonzero().squeeze(-1)
    while len(beyond):
        redrawn = torch.randn(len(beyond), device=device, dtype=torch.float32)
        flat[beyond] = redrawn
        beyond = beyond[redrawn.abs() > 2]
    return draws


class BertReproPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """Base of all nine classes: initialization, and the attributes that transformers reads.

    `save_pretrained` writes a folder that transformers' BERT loads without this code, that loads with
    `trust_remote_code=True`, and that our classes load: see `BertReproConfig.save_pretrained`.
    """

    config_class = BertReproConfig
    base_model_prefix = "bert"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _no_split_modules = ["BertReproEmbeddings", "BertReproLayer"]  # noqa: RUF012 - transformers reads a plain attribute
    _can_record_outputs = {"hidden_states": BertReproLayer, "attentions": BertReproSelfAttention}  # noqa: RUF012
    # A fine-tuned model leaves the heads of pre-training behind, and old checkpoints store the buffer of positions.
    _keys_to_ignore_on_load_unexpected = [r"^cls\.", r"pooler\.", r"position_ids$"]  # noqa: RUF012
    # Because forward accepts **kwargs, transformers' Trainer would otherwise expect the model to divide its loss by the
    # accumulation steps.
    accepts_loss_kwargs = False

    def __init__(self, config: BertReproConfig) -> None:
        config.check()
        if config.hidden_act not in ACT2FN:
            raise ValueError(f"hidden_act must be one of {', '.join(sorted(ACT2FN))}, got {config.hidden_act}")
        super().__init__(config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draws matrices from a normal distribution truncated at two standard deviations (original implementation)."""
        if isinstance(module, nn.Linear | nn.Embedding):
            draws = truncated_normal(module.weight.shape, module.weight.device)
            init.copy_(module.weight, draws * self.config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, BertReproPredictionHead):
            init.zeros_(module.bias)
        elif isinstance(module, nn.LSTM):
            bound = module.hidden_size**-0.5
            for parameter in module.parameters():
                init.uniform_(parameter, -bound, bound)
        elif isinstance(module, BertReproTokenFeatures):
            if module.weights is not None:
                init.zeros_(module.weights)
        else:
            super()._init_weights(module)


class BertReproModel(BertReproPreTrainedModel):
    """The encoder, with the pooler unless `add_pooling_layer=False`.

        tokenizer = AutoTokenizer.from_pretrained("org/bert")
        model = BertReproModel.from_pretrained("org/bert")
        outputs = model(**tokenizer("She opened the window.", return_tensors="pt"))
        print(outputs.last_hidden_state.shape)  # (1, S, H)

    Args:
        config: the architecture.
        add_pooling_layer: whether there is a pooler.
    """

    packed_attention = "packed_sdpa"  # name of the attention function for packed input

    def __init__(self, config: BertReproConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = BertReproEmbeddings(config)
        self.encoder = BertReproEncoder(config)
        self.pooler = BertReproPooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Returns the word embeddings."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replaces the word embeddings.

        Args:
            value: the new embeddings, (V, H).
        """
        self.embeddings.word_embeddings = value

    @capture_outputs  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        pool_token: str = "first",
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """Encodes padded or packed sequences.

        Args:
            input_ids: (B, S) token ids, or (1, T) when packed.
            attention_mask: (B, S), 1 on tokens and 0 on padding; or (B, 1, S, S) as the attention function takes it.
                Not with packed input.
            token_type_ids: (B, S) segment ids; 0 by default.
            position_ids: (B, S) positions; 0, 1, ... by default. Required for packed input, where they start again at 0
                with every sequence.
            inputs_embeds: (B, S, H) word embeddings in place of `input_ids`.
            pool_token: token that the pooler reads. `first` unless a sequence head asks for another, so that the output
                equals that of transformers' BERT.
            kwargs: `cu_seq_lens_q`, `cu_seq_lens_k` (N + 1, int32) and `max_length_q`, `max_length_k` (tokens) for
                packed input; `output_hidden_states`, `output_attentions`, `return_dict`.

        Returns:
            `last_hidden_state` (B, S, H), `pooler_output` (B, H) or (N, H); `hidden_states`, `attentions` on request.

        Raises:
            ValueError: the arguments do not go together, or a sequence is longer than `max_position_embeddings`.
        """
        # Check the arguments.
        batch_size, length = input_shape(input_ids, inputs_embeds)
        for name in ("past_key_values", "encoder_hidden_states"):
            if kwargs.get(name) is not None:
                raise ValueError(
                    f"{name} is not supported: this BERT has neither a key-value cache nor cross-attention"
                )
        packing = {name: kwargs[name] for name in PACKING_ARGUMENTS if kwargs.get(name) is not None}
        check_packing(batch_size, attention_mask, position_ids, packing)
        if packing or position_ids is None:
            self._check_length(packing.get("max_length_q", length))

        # Embed, encode, pool.
        implementation = self._attention_implementation(len(packing) > 0, kwargs.get("output_attentions"))
        embeddings = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
        mask = None if packing else self._attention_mask(embeddings, attention_mask, implementation)
        hidden_states = self.encoder(embeddings, mask, implementation, **packing)
        pooled = None
        if self.pooler is not None:
            cu_seq_lens = packing.get("cu_seq_lens_q")
            pooled = self.pooler(gather_pool_tokens(hidden_states, pool_token, attention_mask, cu_seq_lens))
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)

    def _check_length(self, length: int) -> None:
        limit = self.config.max_position_embeddings
        if length > limit:
            raise ValueError(
                f"a sequence of {length} tokens is longer than max_position_embeddings = {limit}: truncate it"
            )

    def _attention_implementation(self, packed: bool, output_attentions: bool | None) -> str:
        """Returns the name of the attention function of this call: the configured one if it supports the call."""
        configured = str(self.config._attn_implementation)
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_attentions:
            if packed:
                raise ValueError("packed input has no attention matrix to return: pad it, or drop output_attentions")
            # The only function that keeps its probabilities.
            return "eager"
        # Flash attention supports packed input by itself. Other functions would attend across sequences.
        if packed and "flash" not in configured:
            return self.packed_attention
        return configured

    def _attention_mask(
        self, embeddings: torch.Tensor, attention_mask: torch.Tensor | None, implementation: str
    ) -> torch.Tensor | None:
        """Returns the mask in the form that the attention function reads; None if there is nothing to mask."""
        config = self.config
        if implementation != config._attn_implementation:
            config = copy.copy(config)
            config._attn_implementation = implementation
        # transformers' function would read the mask to see if it can be dropped, and cut XLA's graph in two for it.
        if embeddings.device.type == "xla" and implementation == "sdpa" and not config.is_decoder:
            return None if attention_mask is None else attention_mask[:, None, None, :].bool()
        create_mask = create_causal_mask if config.is_decoder else create_bidirectional_mask
        mask = create_mask(config=config, inputs_embeds=embeddings, attention_mask=attention_mask, past_key_values=None)
        return cast(torch.Tensor | None, mask)


def input_shape(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Size:
    """Returns the shape of the tokens of a call.

    Args:
        input_ids: token ids, of any shape.
        inputs_embeds: embeddings in place of the ids, with one more dimension.

    Returns:
        The shape of the ids.

    Raises:
        ValueError: neither or both were given.
    """
    if input_ids is not None and inputs_embeds is None:
        return input_ids.shape
    if inputs_embeds is not None and input_ids is None:
        return inputs_embeds.shape[:-1]
    raise ValueError("give exactly one of input_ids and inputs_embeds")


def check_packing(
    batch_size: int, attention_mask: torch.Tensor | None, position_ids: torch.Tensor | None, packing: dict[str, Any]
) -> None:
    """Checks that packed input is complete, and that input without packing arguments is not packed.

    Args:
        batch_size: rows of the input.
        attention_mask: mask of the call.
        position_ids: positions of the call.
        packing: the packing arguments of the call.

    Raises:
        ValueError: an argument is missing or does not go with packed input.
    """
    if not packing:
        # Reading positions would break a compiled graph, so this check is left out there.
        if batch_size == 1 and position_ids is not None and not torch.compiler.is_compiling():
            restarts = position_ids[..., 1:] == 0
            if attention_mask is not None and attention_mask.dim() == 2:
                restarts = restarts & (attention_mask[:, 1:] != 0) & (attention_mask[:, :-1] != 0)
            if restarts.any():
                raise ValueError(f"position_ids restart, as in packed sequences: give {', '.join(PACKING_ARGUMENTS)}")
        return
    missing = [name for name in PACKING_ARGUMENTS if name not in packing]
    if missing:
        raise ValueError(f"packed input needs {', '.join(missing)} as well")
    if batch_size != 1:
        raise ValueError(f"packed input is one row of tokens, got a batch of {batch_size}")
    if position_ids is None:
        raise ValueError("packed input needs position_ids that start again at 0 with every sequence")
    if attention_mask is not None:
        raise ValueError("packed input has no padding and takes no attention_mask")


# --- Heads that predict tokens --------------------------------------------------------------------------------------


class BertReproTokenPredictor(BertReproPreTrainedModel):
    """Base of the three classes with a prediction head: tied embeddings, and decoding at chosen positions.

    Attributes:
        token_loss: computes the loss of the token predictions; `cpu_kernels` replaces it.
    """

    bert: "BertReproModel"
    cls: nn.ModuleDict

    _tied_weights_keys = {  # noqa: RUF012
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    token_loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = staticmethod(mean_cross_entropy)

    def get_output_embeddings(self) -> nn.Linear:
        """Returns the decoder of the prediction head."""
        return cast(nn.Linear, self.cls["predictions"].decoder)

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replaces the decoder of the prediction head and its bias.

        Args:
            new_embeddings: the new decoder, H to V.
        """
        head = cast(BertReproPredictionHead, self.cls["predictions"])
        head.decoder = new_embeddings
        head.bias = new_embeddings.bias

    def predict_masked(
        self,
        hidden_states: torch.Tensor,
        labels: torch.Tensor | None,
        prediction_positions: torch.Tensor | None,
        sparse: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Decodes the positions to predict, and scores them.

        Args:
            hidden_states: (B, S, H).
            labels: (B, S) token ids, -100 where nothing is predicted.
            prediction_positions: (P,) indices into the B*S positions, padded with 0. Position 0 is [CLS], whose label
                is -100.
            sparse: without `prediction_positions`, decode only positions that have a label. The configuration's
                `sparse_prediction` takes precedence.

        Returns:
            Logits (B, S, V), or (P, V) when only some positions are decoded; the loss, if there are labels.
        """
        if self.config.sparse_prediction is not None:
            sparse = self.config.sparse_prediction
        if prediction_positions is None and labels is not None and sparse:
            prediction_positions = (labels.flatten() != IGNORED_LABEL).nonzero().squeeze(-1)
        if prediction_positions is not None:
            hidden_states = hidden_states.flatten(0, 1).index_select(0, prediction_positions)
            labels = None if labels is None else labels.flatten().index_select(0, prediction_positions)
        logits = self.cls["predictions"](hidden_states)
        if labels is None:
            return logits, None
        return logits, self.token_loss(logits, labels)


@dataclass
class BertReproForPreTrainingOutput(ModelOutput):  # type: ignore[misc]
    """Output of `BertReproForPreTraining`.

    Args:
        loss: sum of the losses whose labels were given.
        mlm_loss: mean cross-entropy over predicted tokens.
        nsp_loss: mean cross-entropy over sequences.
        prediction_logits: (B, S, V), or (P, V) at predicted positions only.
        seq_relationship_logits: (B, 2); column 0 is IsNext.
        hidden_states: L + 1 tensors (B, S, H), on request.
        attentions: L tensors (B, A, S, S), on request.
    """

    loss: torch.Tensor | None = None
    mlm_loss: torch.Tensor | None = None
    nsp_loss: torch.Tensor | None = None
    prediction_logits: torch.Tensor | None = None
    seq_relationship_logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


class BertReproForPreTraining(BertReproTokenPredictor):
    """Masked language model and next sentence prediction (paper, section 3.1).

        tokenizer = AutoTokenizer.from_pretrained("org/bert")
        model = BertReproForPreTraining.from_pretrained("org/bert")
        outputs = model(**tokenizer("She [MASK] the window.", "Fresh air came in.", return_tensors="pt"))
        print(outputs.prediction_logits.shape, outputs.seq_relationship_logits.shape)  # (1, S, V), (1, 2)

    Inputs and outputs are at `forward`.
    """

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__(config)
        self.bert = BertReproModel(config)
        self.cls = nn.ModuleDict(
            {"predictions": BertReproPredictionHead(config), "seq_relationship": nn.Linear(config.hidden_size, 2)}
        )
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        next_sentence_label: torch.Tensor | None = None,
        prediction_positions: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BertReproForPreTrainingOutput:
        """Predicts masked tokens, and whether segment B follows segment A. Other input as in `BertReproModel.forward`.

        Either label may be left out. With `labels`, only labelled positions are decoded (`sparse_prediction`).

            labels: (B, S) token ids, -100 where nothing is predicted.
            next_sentence_label: (B,) or (N,); 0 is IsNext, 1 is NotNext.
            prediction_positions: (P,) indices into the B*S (or T) positions that are decoded, padded with 0.
        """
        arguments = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.bert(*arguments, pool_token=self.config.pool_token, return_dict=True, **kwargs)
        prediction_logits, mlm_loss = self.predict_masked(
            outputs.last_hidden_state, labels, prediction_positions, sparse=True
        )
        seq_relationship_logits = self.cls["seq_relationship"](outputs.pooler_output)
        nsp_loss = None
        if next_sentence_label is not None:
            nsp_loss = mean_cross_entropy(seq_relationship_logits, next_sentence_label)

        # The sum of the losses that can be computed.
        loss = mlm_loss
        if nsp_loss is not None:
            loss = nsp_loss if mlm_loss is None else mlm_loss + nsp_loss
        return BertReproForPreTrainingOutput(
            loss=loss,
            mlm_loss=mlm_loss,
            nsp_loss=nsp_loss,
            prediction_logits=prediction_logits,
            seq_relationship_logits=seq_relationship_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class BertReproForMaskedLM(BertReproTokenPredictor):
    """Masked language model without next sentence prediction (paper, section 5.1, "No NSP").

        tokenizer = AutoTokenizer.from_pretrained("org/bert")
        model = BertReproForMaskedLM.from_pretrained("org/bert")
        inputs = tokenizer("She [MASK] the window.", return_tensors="pt")
        masked = inputs["input_ids"] == tokenizer.mask_token_id
        print(tokenizer.decode(model(**inputs).logits[masked].argmax(-1)))

    Inputs and outputs are at `forward`.
    """

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__(config)
        self.bert = BertReproModel(config, add_pooling_layer=False)
        self.cls = nn.ModuleDict({"predictions": BertReproPredictionHead(config)})
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        prediction_positions: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """Predicts masked tokens. Other input as in `BertReproModel.forward`.

        labels: (B, S) token ids, -100 where nothing is predicted.
        prediction_positions: (P,) indices into the B*S (or T) positions that are decoded, padded with 0. All
            positions are decoded by default, as transformers' `Trainer.predict` expects.
        """
        outputs = self.bert(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        logits, loss = self.predict_masked(outputs.last_hidden_state, labels, prediction_positions, sparse=False)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class BertReproForCausalLM(BertReproTokenPredictor, GenerationMixin):  # type: ignore[misc]
    """Left-to-right language model (paper, section 5.1, "LTR"). It is causal whatever `config.is_decoder` says.

        tokenizer = AutoTokenizer.from_pretrained("org/bert-left-to-right")
        model = BertReproForCausalLM.from_pretrained("org/bert-left-to-right")
        inputs = tokenizer("She opened the window.", return_tensors="pt")
        print(model(**inputs, labels=inputs["input_ids"]).loss)  # nats per token

    Inputs and outputs are at `forward`.
    """

    def __init__(self, config: BertReproConfig) -> None:
        if not config.is_decoder:
            config = copy.deepcopy(config)
            config.is_decoder = True
        super().__init__(config)
        self.bert = BertReproModel(config, add_pooling_layer=False)
        self.cls = nn.ModuleDict({"predictions": BertReproPredictionHead(config)})
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        shift_labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutput:
        """Predicts every next token. Other input as in `BertReproModel.forward`.

        labels: (B, S) the input ids themselves, -100 on padding; shifted here. The last token of a packed sequence
            does not predict the first of the next.
        logits_to_keep: number of last positions to decode, or their indices; 0 decodes all. Not with labels.
        shift_labels: (B, S) the next token of each position, in place of `labels`, where a sequence is spread over
            devices and the caller has shifted it before.
        """
        if shift_labels is None and labels is not None:
            shift_labels = next_token_labels(labels, kwargs.get("cu_seq_lens_q"))
        if shift_labels is not None and not (isinstance(logits_to_keep, int) and logits_to_keep == 0):
            raise ValueError("labels need the logits of every position: leave logits_to_keep at 0")
        outputs = self.bert(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        # A slice from -0 has all positions.
        positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.cls["predictions"](outputs.last_hidden_state[:, positions])
        loss = None if shift_labels is None else self.token_loss(logits, shift_labels)
        return CausalLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Prepares a step of `generate`, which reads the complete sequence because nothing is cached.

        Args:
            input_ids: (B, S) prompt and tokens so far.
            next_sequence_length: number of tokens that a cache would leave to read; unused.
            past_key_values: empty cache; unused.
            kwargs: masks, positions and options of the step.

        Returns:
            The arguments of `forward`.
        """
        return cast(dict[str, Any], super().prepare_inputs_for_generation(input_ids, **kwargs))


def next_token_labels(labels: torch.Tensor, cu_seq_lens: torch.Tensor | None = None) -> torch.Tensor:
    """Returns next-token labels: `labels` shifted left by one, and -100 where there is no next token.

    Args:
        labels: (B, S) or (1, T) token ids, -100 on padding.
        cu_seq_lens: (N + 1,) offsets of packed sequences.

    Returns:
        The following token of each position, -100 after the last token of a sequence.
    """
    next_tokens = F.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL)
    if cu_seq_lens is None:
        return next_tokens
    return next_tokens.index_fill(1, cu_seq_lens[1:].long() - 1, IGNORED_LABEL)


# --- What heads read ------------------------------------------------------------------------------------------------


def classifier_dropout(config: BertReproConfig) -> nn.Dropout:
    """Returns the dropout in front of a classification layer."""
    probability = config.classifier_dropout
    return nn.Dropout(config.hidden_dropout_prob if probability is None else probability)


class BertReproBiLSTM(nn.Module):
    """A bidirectional LSTM that reads each sequence by itself (paper, sections 5.1 and 5.3).

    Args:
        config: `bilstm_size` per direction, `bilstm_layers`; dropout between the layers is that of hidden states.
        input_size: width of what it reads.
    """

    def __init__(self, config: BertReproConfig, input_size: int) -> None:
        super().__init__()
        dropout = config.hidden_dropout_prob if config.bilstm_layers > 1 else 0.0
        self.lstm = nn.LSTM(
            input_size,
            config.bilstm_size or 0,
            config.bilstm_layers,
            batch_first=True,
            bidirectional=True,
            dropout=dropout,
        )

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        cu_seq_lens: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Reads padded or packed sequences, each without padding and without its neighbours.

        Args:
            hidden_states: (B, S, I), or (1, T, I) when packed.
            attention_mask: (B, S), 1 on tokens; padding comes after them.
            cu_seq_lens: (N + 1,) offsets of packed sequences.

        Returns:
            For every token (B, S, 2K) or (1, T, 2K), zeros on padding; for every sequence (B, 2K) or (N, 2K), the
            forward state after its last token and the backward state after its first.
        """
        # The LSTM computes in its own precision, outside of autocast.
        weight = cast(torch.Tensor, self.lstm.weight_ih_l0)
        hidden_states = hidden_states.to(weight.dtype)
        length = hidden_states.shape[1]
        if cu_seq_lens is not None:
            sequences = torch.split(hidden_states.squeeze(0), cu_seq_lens.diff().tolist())
            read = nn.utils.rnn.pack_sequence(list(sequences), enforce_sorted=False)
        else:
            lengths = torch.full((len(hidden_states),), length)
            if attention_mask is not None:
                lengths = attention_mask.sum(-1).cpu()
            read = nn.utils.rnn.pack_padded_sequence(hidden_states, lengths, batch_first=True, enforce_sorted=False)
        with torch.autocast(hidden_states.device.type, enabled=False):
            tokens, (last, _) = self.lstm(read)
        if cu_seq_lens is not None:
            tokens = torch.cat(nn.utils.rnn.unpack_sequence(tokens)).unsqueeze(0)
        else:
            tokens, _ = nn.utils.rnn.pad_packed_sequence(tokens, batch_first=True, total_length=length)
        return tokens, torch.cat([last[-2], last[-1]], dim=-1)


class BertReproTokenFeatures(nn.Module):
    """Combines layers of the encoder into one vector per token: the rows of Table 7."""

    # Places among the L + 1 hidden states, of which the first is the embeddings.
    LAYERS = {  # noqa: RUF012
        "embeddings": slice(0, 1),
        "second_to_last": slice(-2, -1),
        "last": slice(-1, None),
        "weighted_last_four": slice(-4, None),
        "concat_last_four": slice(-4, None),
        "weighted_all": slice(1, None),
    }

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__()
        row = str(config.token_features)
        self.layers = self.LAYERS[row]
        num_layers = len(range(config.num_hidden_layers + 1)[self.layers])
        self.size = config.hidden_size
        if row.startswith("concat"):
            self.size *= num_layers
        # Equal weights at the beginning.
        self.weights = nn.Parameter(torch.zeros(num_layers)) if row.startswith("weighted") else None

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Combines the layers that the row reads.

        Args:
            states: (B, S, K, H), the hidden states at the places `layers`.

        Returns:
            (B, S, H), or (B, S, 4H) for `concat_last_four`.
        """
        if self.weights is None:
            return states.flatten(-2)
        weights = self.weights.softmax(0)
        return (weights.unsqueeze(-1) * states).sum(-2)


class BertReproClassifier(BertReproPreTrainedModel):
    """Base of the heads that classify with one layer: encoder, optional BiLSTM, dropout, layer.

    Args:
        config: the architecture.
        num_outputs: width of the layer.
        pooled: whether the head reads one vector of each sequence (the pooler's, or that of the BiLSTM) and not one of
            each token.
    """

    def __init__(self, config: BertReproConfig, num_outputs: int, pooled: bool) -> None:
        super().__init__(config)
        # A BiLSTM returns the vector of a sequence itself, so there is no pooler before it.
        self.bert = BertReproModel(config, add_pooling_layer=pooled and config.bilstm_size is None)
        self.features = None if pooled or config.token_features is None else BertReproTokenFeatures(config)
        size = config.hidden_size if self.features is None else self.features.size
        self.bilstm = None
        if config.bilstm_size is not None:
            self.bilstm = BertReproBiLSTM(config, size)
            size = 2 * config.bilstm_size
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(size, num_outputs)
        self.post_init()

    def pooled_logits(
        self, outputs: BaseModelOutputWithPooling, attention_mask: torch.Tensor | None, packing: dict[str, Any]
    ) -> torch.Tensor:
        """Computes the scores of each sequence, (B, C) or (N, C), from the encoder's outputs."""
        pooled = outputs.pooler_output
        if self.bilstm is not None:
            pooled = self.bilstm(outputs.last_hidden_state, attention_mask, packing.get("cu_seq_lens_q"))[1]
        return float32_logits(self.classifier, self.dropout(pooled))

    def token_logits(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, packing: dict[str, Any]
    ) -> torch.Tensor:
        """Computes the scores of each token, (B, S, C) or (1, T, C), from what the head reads of it."""
        if self.bilstm is not None:
            hidden_states = self.bilstm(hidden_states, attention_mask, packing.get("cu_seq_lens_q"))[0]
        return float32_logits(self.classifier, self.dropout(hidden_states))


# --- Heads that read one vector of each sequence --------------------------------------------------------------------


class BertReproForNextSentencePrediction(BertReproPreTrainedModel):
    """Next sentence prediction alone (paper, section 3.1, Task 2).

        tokenizer = AutoTokenizer.from_pretrained("org/bert")
        model = BertReproForNextSentencePrediction.from_pretrained("org/bert")
        logits = model(**tokenizer("She opened the window.", "Fresh air came in.", return_tensors="pt")).logits
        print(logits.softmax(-1)[0, 0])  # probability of IsNext

    Inputs and outputs are at `forward`.
    """

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__(config)
        self.bert = BertReproModel(config)
        self.cls = nn.ModuleDict({"seq_relationship": nn.Linear(config.hidden_size, 2)})
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> NextSentencePredictorOutput:
        """Predicts whether segment B follows segment A. Other input as in `BertReproModel.forward`.

        labels: (B,) or (N,); 0 is IsNext, 1 is NotNext.
        """
        arguments = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.bert(*arguments, pool_token=self.config.pool_token, return_dict=True, **kwargs)
        logits = float32_logits(self.cls["seq_relationship"], outputs.pooler_output)
        return NextSentencePredictorOutput(
            loss=None if labels is None else mean_cross_entropy(logits, labels),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class BertReproForSequenceClassification(BertReproClassifier):
    """Classification or regression of sequences and sequence pairs: the GLUE head (paper, section 4.1).

        tokenizer = AutoTokenizer.from_pretrained("runs/moods")
        model = BertReproForSequenceClassification.from_pretrained("runs/moods")
        logits = model(**tokenizer("A warm evening.", return_tensors="pt")).logits
        print(model.config.id2label[logits.argmax(-1).item()])

    Inputs and outputs are at `forward`.
    """

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__(config, config.num_labels, pooled=True)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """Scores sequences. Other input as in `BertReproModel.forward`.

        labels: (B,) class ids; (B,) or (B, num_labels) numbers for regression; (B, num_labels) zeros and ones for
            several labels at once. (N,) when packed.
        """
        arguments = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.bert(*arguments, pool_token=self.config.pool_token, return_dict=True, **kwargs)
        logits = self.pooled_logits(outputs, attention_mask, kwargs)
        return SequenceClassifierOutput(
            loss=None if labels is None else self._loss(logits, labels),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Computes the loss of the configuration's problem type, which follows from the labels if it is not set."""
        if self.config.problem_type is None:
            # It stays in the configuration, because a published model must say what its logits are.
            if self.config.num_labels == 1:
                self.config.problem_type = "regression"
            elif labels.is_floating_point():
                self.config.problem_type = "multi_label_classification"
            else:
                self.config.problem_type = "single_label_classification"
        weights, smoothing = self.config.class_weights, self.config.label_smoothing
        has_one_label = self.config.problem_type == "single_label_classification"
        if has_one_label and not (weights or smoothing):
            return mean_cross_entropy(logits, labels)

        # The other losses, in at least 32 bits too.
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if has_one_label:
            weight = logits.new_tensor(weights) if weights else None
            return F.cross_entropy(logits, labels.view(-1), weight=weight, label_smoothing=smoothing)
        labels = labels.to(logits.dtype).view_as(logits)
        if self.config.problem_type == "regression":
            return F.mse_loss(logits, labels)
        return F.binary_cross_entropy_with_logits(logits, labels)


class BertReproForMultipleChoice(BertReproClassifier):
    """Choice among sequences: one vector scored against each pooled sequence (paper, section 4.4, SWAG).

        tokenizer = AutoTokenizer.from_pretrained("org/bert-swag")
        model = BertReproForMultipleChoice.from_pretrained("org/bert-swag")
        endings = ["Fresh air came in.", "The piano is of wood."]
        inputs = tokenizer(["She opened the window."] * 2, endings, padding=True, return_tensors="pt")
        logits = model(**{name: values[None] for name, values in inputs.items()}).logits  # (1, 2)
        print(endings[logits.argmax(-1).item()])

    Inputs and outputs are at `forward`.
    """

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__(config, 1, pooled=True)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_choices: int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput:
        """Scores the C choices of each example.

        Padded input as in `BertReproModel.forward`, with choices as second dimension: (B, C, S). Packed input is
        (1, T), the B*C choices one after the other.

            labels: (B,) index of the right choice.
            num_choices: C, for packed input without labels.
        """
        arguments = [input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds]
        cu_seq_lens = cast(torch.Tensor | None, kwargs.get("cu_seq_lens_q"))
        if cu_seq_lens is not None:
            num_choices = self._packed_choices(cu_seq_lens.numel() - 1, num_choices, labels)
        else:
            # Encode all choices of all examples as one batch, (B * C, S).
            num_choices = input_shape(input_ids, inputs_embeds)[1]
            arguments = [None if argument is None else argument.flatten(0, 1) for argument in arguments]
        outputs = self.bert(*arguments, pool_token=self.config.pool_token, return_dict=True, **kwargs)
        logits = self.pooled_logits(outputs, arguments[1], kwargs).view(-1, num_choices)
        return MultipleChoiceModelOutput(
            loss=None if labels is None else mean_cross_entropy(logits, labels),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    @staticmethod
    def _packed_choices(num_sequences: int, num_choices: int | None, labels: torch.Tensor | None) -> int:
        """Returns C of packed input: as given, or from the number of labels."""
        if num_choices is None and labels is not None:
            num_choices = num_sequences // len(labels)
        if not num_choices or num_sequences % num_choices:
            raise ValueError(
                f"{num_sequences} packed sequences do not say how many choices there are: give num_choices"
            )
        return num_choices


# --- Heads that read every token ------------------------------------------------------------------------------------


class BertReproForTokenClassification(BertReproClassifier):
    """Classification of tokens: the CoNLL-2003 head (paper, section 5.3), fine-tuned or feature-based.

        tokenizer = AutoTokenizer.from_pretrained("org/bert-ner")
        model = BertReproForTokenClassification.from_pretrained("org/bert-ner")
        logits = model(**tokenizer("Ada was born in London.", return_tensors="pt")).logits  # (1, S, labels)
        print([model.config.id2label[index] for index in logits[0].argmax(-1).tolist()])

    Inputs and outputs are at `forward`.
    """

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__(config, config.num_labels, pooled=False)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        encoder_states: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        """Scores tokens. Other input as in `BertReproModel.forward`.

        labels: (B, S) class ids, -100 on tokens that are not classified.
        encoder_states: (B, S, K, H) in place of what the encoder would compute, for models with `token_features`: the
            hidden states at the K places that it reads (`features.layers`).

        Raises:
            ValueError: there are `encoder_states`, and the model has no `token_features`.
        """
        if encoder_states is not None and self.features is None:
            raise ValueError(
                "encoder_states replace the layers that config.token_features reads, which is None: set token_features "
                "or give input_ids"
            )
        returns_hidden_states = kwargs.pop("output_hidden_states", None)
        if returns_hidden_states is None:
            returns_hidden_states = self.config.output_hidden_states

        # Encode, unless the caller has the encoder's states already.
        outputs = BaseModelOutputWithPooling()
        if encoder_states is None:
            kwargs["output_hidden_states"] = returns_hidden_states or self.features is not None
            outputs = self.bert(
                input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
            )

        # Classify the last hidden states, or a combination of layers.
        if self.features is None:
            token_states = outputs.last_hidden_state
        else:
            if encoder_states is None:
                encoder_states = torch.stack(outputs.hidden_states[self.features.layers], dim=2)
            token_states = self.features(encoder_states)
        logits = self.token_logits(token_states, attention_mask, kwargs)
        return TokenClassifierOutput(
            loss=None if labels is None else mean_cross_entropy(logits, labels),
            logits=logits,
            hidden_states=outputs.hidden_states if returns_hidden_states else None,
            attentions=outputs.attentions,
        )


class BertReproForQuestionAnswering(BertReproPreTrainedModel):
    """Extractive question answering: a start and an end vector (paper, section 4.2).

        tokenizer = AutoTokenizer.from_pretrained("org/bert-squad")
        model = BertReproForQuestionAnswering.from_pretrained("org/bert-squad")
        outputs = model(**tokenizer("Where was Ada born?", "Ada was born in London.", return_tensors="pt"))
        print(outputs.start_logits.shape, outputs.end_logits.shape)  # (1, S) each

    Inputs and outputs are at `forward`.
    """

    def __init__(self, config: BertReproConfig) -> None:
        super().__init__(config)
        self.bert = BertReproModel(config, add_pooling_layer=False)
        self.bilstm = None if config.bilstm_size is None else BertReproBiLSTM(config, config.hidden_size)
        size = config.hidden_size
        if config.bilstm_size is not None:
            size = 2 * config.bilstm_size
        self.qa_outputs = nn.Linear(size, 2)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        answer_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        """Scores tokens as start and end of the answer. Other input as in `BertReproModel.forward`.

        The loss is the mean or the sum (`config.qa_loss`) of the two cross-entropies, over the complete sequence unless
        there is an `answer_mask`: padding is part of a padded sequence, as in the original implementation, and not of a
        packed one. Packed sequences give logits (N, longest sequence), with the lowest number after the end of the
        shorter ones.

            start_positions: (B,) or (N,) first token of the answer, counted from the start of its sequence; positions
                beyond the sequence are ignored.
            end_positions: (B,) or (N,) last token of the answer.
            answer_mask: (B, S) or (1, T), true where an answer may start and end; the logits of other tokens become the
                lowest number. A position that it leaves out must not be a target.
        """
        outputs = self.bert(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        hidden_states = outputs.last_hidden_state
        if self.bilstm is not None:
            hidden_states = self.bilstm(hidden_states, attention_mask, kwargs.get("cu_seq_lens_q"))[0]
        logits = float32_logits(self.qa_outputs, hidden_states)
        if answer_mask is not None:
            logits = logits.masked_fill(~answer_mask.bool().unsqueeze(-1), torch.finfo(logits.dtype).min)
        if kwargs.get("cu_seq_lens_q") is not None:
            logits = unpack_tokens(logits, kwargs["cu_seq_lens_q"], kwargs["max_length_q"])
        start_logits, end_logits = logits.unbind(dim=-1)

        loss = None
        if start_positions is not None and end_positions is not None:
            # A position beyond the sequence is ignored: its answer was cut off.
            beyond = start_logits.shape[1]
            start_loss = mean_cross_entropy(start_logits, start_positions.clamp(0, beyond), ignore_index=beyond)
            end_loss = mean_cross_entropy(end_logits, end_positions.clamp(0, beyond), ignore_index=beyond)
            loss = start_loss + end_loss
            if self.config.qa_loss == "mean":
                loss = loss / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits.clone(memory_format=torch.contiguous_format),
            end_logits=end_logits.clone(memory_format=torch.contiguous_format),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def unpack_tokens(values: torch.Tensor, cu_seq_lens: torch.Tensor, max_length: int) -> torch.Tensor:
    """Lays packed scores out with one row per sequence.

    Args:
        values: (1, T, C) scores of all tokens.
        cu_seq_lens: (N + 1,) offsets of the sequences.
        max_length: longest sequence, in tokens.

    Returns:
        (N, max_length, C), with the lowest finite number after the end of each sequence.
    """
    num_sequences = cu_seq_lens.shape[0] - 1
    starts = cu_seq_lens.narrow(0, 0, num_sequences).unsqueeze(1)
    ends = cu_seq_lens.narrow(0, 1, num_sequences).unsqueeze(1)

    # Take so many tokens from each start, then overwrite those of the next sequence.
    tokens = starts + torch.arange(max_length, device=values.device)
    flat = tokens.clamp(max=values.shape[1] - 1).flatten()
    padded = values.squeeze(0).index_select(0, flat).view(*tokens.shape, -1)
    return padded.masked_fill((tokens >= ends).unsqueeze(-1), torch.finfo(values.dtype).min)


__all__ = [
    "BertReproForCausalLM",
    "BertReproForMaskedLM",
    "BertReproForMultipleChoice",
    "BertReproForNextSentencePrediction",
    "BertReproForPreTraining",
    "BertReproForPreTrainingOutput",
    "BertReproForQuestionAnswering",
    "BertReproForSequenceClassification",
    "BertReproForTokenClassification",
    "BertReproModel",
    "BertReproPreTrainedModel",
]
