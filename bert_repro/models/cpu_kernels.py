"""Kernels of our own for training on a CPU: dropout, packed attention, cross-entropy over a vocabulary.

`use_cpu_kernels(model)` switches them on for one model when its training starts; the published modeling file does not
use them. They compute what PyTorch's kernels do. Dropout draws other numbers, and sums are rounded in another order.

Shapes: A attention heads, D = hidden size / A, T tokens of all packed sequences, R tokens that the head reads, P
predicted positions, V vocabulary.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .modeling_bert_repro import (
    IGNORED_LABEL,
    BertReproLayer,
    BertReproModel,
    BertReproTokenPredictor,
    mean_cross_entropy,
    packed_attention_forward,
)

DROPOUT_STEPS = 1 << 16  # Dropout probabilities are multiples of one over this.
GROUP_COST = 1 << 15
"""Cost of one more product of packed attention on a CPU, in scores of all heads: measured on two cores."""
MANY_CLASSES = 1024  # From here on the cross-entropy by rows is faster.
PACKED_ATTENTION = "packed_cpu"
TOKENS_MULTIPLE = 64  # of the tokens that the last layer computes, so that few shapes occur


def use_cpu_kernels(model: nn.Module) -> None:
    """Makes a model compute with these kernels wherever its tensors are on the CPU and nothing is compiled.

    Args:
        model: one of our models, not yet wrapped.
    """
    for module in list(model.modules()):
        if isinstance(module, BertReproModel):
            module.packed_attention = PACKED_ATTENTION
        encoder_model = getattr(module, "bert", None)
        if isinstance(encoder_model, BertReproModel):
            encoder_model.encoder.register_forward_pre_hook(round_tokens_up, with_kwargs=True)
            LastLayer(module, encoder_model)
        if isinstance(module, BertReproTokenPredictor):
            module.token_loss = token_cross_entropy
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, CpuDropout(child.p).train(child.training))


def computes_here(states: torch.Tensor) -> bool:
    """Returns whether a tensor is on the CPU and nothing is compiled."""
    return states.device.type == "cpu" and not torch.compiler.is_compiling()


# --- Few shapes -----------------------------------------------------------------------------------------------------


def round_tokens_up(encoder: nn.Module, args: tuple[Any, ...], packing: dict[str, Any]) -> Any:
    """Adds up to 3% of tokens, of zeros, to the states of packed sequences in training, so that few shapes occur.

    Every batch has another number of tokens. For each, the C library finds no freed block of exactly that size, so
    memory grows from step to step, and oneDNN makes new kernels. Added tokens attend to each other; their gradient is
    zero.
    """
    states = args[0]
    is_packed = packing.get("cu_seq_lens_q") is not None
    if encoder.training and is_packed and computes_here(states):
        # Round up to a multiple of a power of two that is at most 1/32 of the number of tokens.
        tokens = states.shape[1]
        multiple = 1 << max(0, tokens.bit_length() - 6)
        states = nn.functional.pad(states, (0, 0, 0, -tokens % multiple))
    return (states, *args[1:]), packing


# --- Last layer -----------------------------------------------------------------------------------------------------


class LastLayer:
    """Makes the last layer compute only the packed tokens that the head reads: a sixth of them in pre-training.

    The head reads the predicted tokens, and the one of each sequence that is pooled. The states of all other tokens
    become zeros; in the attention of the layer they still are keys and values. Tokens that `round_tokens_up` added are
    dropped. The order of events in a forward pass:

    1. `choose`, before the model or its encoder: choose the tokens that are read.
    2. `take`, in the last layer, after its attention: continue with these tokens alone.
    3. `put_back`, after the last layer: put their states back to their places.

    Args:
        model: a model with a head.
        encoder_model: the encoder of that model.
    """

    def __init__(self, model: nn.Module, encoder_model: BertReproModel) -> None:
        self._encoder_model = encoder_model
        self._predicts_tokens = isinstance(model, BertReproTokenPredictor)
        self._num_tokens: int | None = None  # tokens of the batch, without those that were added; None: not packed
        self._positions: torch.Tensor | None = None  # of the tokens that are read, int64 (R); None: all are read
        self._head_has_chosen = False

        model.register_forward_pre_hook(self.choose_for_head, with_kwargs=True)
        encoder_model.register_forward_pre_hook(self.choose_for_encoder, with_kwargs=True)
        last_layer = cast(BertReproLayer, encoder_model.encoder.layer[-1])
        last_layer.attention.output.register_forward_pre_hook(self.take)
        last_layer.register_forward_hook(self.put_back)

    def choose_for_head(self, model: nn.Module, args: tuple[Any, ...], inputs: dict[str, Any]) -> None:
        """Chooses the tokens that the head reads, before the model with the head is called."""
        del model, args
        self._head_has_chosen = True
        self._num_tokens = _packed_tokens(inputs)
        self._positions = None
        if self._num_tokens is not None and self._head_reads_few(inputs):
            self._positions = self._tokens_read(inputs, self._num_tokens)

    def choose_for_encoder(self, model: nn.Module, args: tuple[Any, ...], inputs: dict[str, Any]) -> None:
        """Computes all tokens if the encoder is called by itself."""
        del model, args
        if self._head_has_chosen:
            self._head_has_chosen = False
            return
        self._num_tokens = _packed_tokens(inputs)
        self._positions = None

    def _head_reads_few(self, inputs: dict[str, Any]) -> bool:
        """Returns whether the head reads chosen tokens, and the caller does not ask for the states of all."""
        returns_all_states = inputs.get("output_hidden_states", self._encoder_model.config.output_hidden_states)
        if returns_all_states:
            return False
        if inputs.get("prediction_positions") is not None:
            return True
        # Without chosen positions, a token predictor decodes all tokens, and so does a head without a pooler.
        return not self._predicts_tokens and self._encoder_model.pooler is not None

    def _tokens_read(self, inputs: dict[str, Any], num_tokens: int) -> torch.Tensor:
        """Returns the positions of the tokens that the head reads, and a few more, int64 (R), ascending."""
        offsets = inputs["cu_seq_lens_q"]
        is_read = torch.zeros(num_tokens, dtype=torch.bool)

        # The token of each sequence that is pooled.
        if self._encoder_model.config.pool_token == "first":
            is_read[offsets[:-1].clamp(max=num_tokens - 1)] = True
        else:
            is_read[offsets[1:] - 1] = True
        # The tokens that are decoded.
        predicted = inputs.get("prediction_positions")
        if predicted is not None:
            is_read[predicted] = True

        # Up to 63 tokens that are not read, so that few shapes occur.
        surplus = -int(is_read.sum()) % TOKENS_MULTIPLE
        not_read = (~is_read).nonzero()[:surplus, 0]
        is_read[not_read] = True
        return is_read.nonzero()[:, 0]

    def take(self, module: nn.Module, states: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Maps the attended values and the residual, (1, T, H) each, to (1, R, H)."""
        del module
        if self._positions is None:
            return states
        return tuple(tensor.index_select(1, self._positions) for tensor in states)

    def put_back(self, module: nn.Module, args: tuple[torch.Tensor, ...], states: torch.Tensor) -> torch.Tensor:
        """Maps (1, R, H) to (1, T, H)."""
        del module, args
        if self._positions is None or self._num_tokens is None:
            return states[:, : self._num_tokens]
        zeros = states.new_zeros(1, self._num_tokens, states.shape[2])
        return zeros.index_copy(1, self._positions, states)


def _packed_tokens(inputs: dict[str, Any]) -> int | None:
    """Returns the number of tokens of packed input on the CPU; None for other input."""
    offsets = inputs.get("cu_seq_lens_q")
    if offsets is None or not computes_here(offsets):
        return None
    return int(offsets[-1])


# --- Dropout --------------------------------------------------------------------------------------------------------


def draw_kept(shape: torch.Size, probability: float) -> torch.Tensor:
    """Draws which values dropout keeps, on the CPU.

    PyTorch's generator on the CPU is serial and draws one element at a time. Drawing 64 bits at a time, 16 for each
    element, takes a sixth of the time. The probability is rounded to a 65,536th (0.1 becomes 0.1000061).

    Args:
        shape: shape of the states that are dropped from.
        probability: share that is dropped.

    Returns:
        int16, all bits set where a value is kept and none where it is dropped.
    """
    count = shape.numel()
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    # A 16-bit draw is at least -32,768. The lowest ones are dropped.
    lowest_kept = round(probability * DROPOUT_STEPS) - DROPOUT_STEPS // 2
    kept = torch.empty(shape, dtype=torch.int16)
    torch.ge(draws[:count].view(shape), lowest_kept, out=kept)
    # 1 becomes -1, which has all bits set.
    return kept.neg_()


def keep(states: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    """Sets the values that dropout does not keep to zero, by their bits.

    Args:
        states: floating-point numbers.
        kept: result of `draw_kept` for the same shape; None keeps all.

    Returns:
        A new tensor, or `states` if all is kept.
    """
    if kept is None:
        return states
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[states.dtype.itemsize]
    return (states.view(integers) & kept.to(integers)).view(states.dtype)


def dropout_scale(probability: float) -> float:
    """Returns the factor on kept values that leaves the expectation as it is."""
    return DROPOUT_STEPS / (DROPOUT_STEPS - round(probability * DROPOUT_STEPS))


class ScaledKeep(torch.autograd.Function):
    """Dropout for which the kept values are already drawn."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, kept: torch.Tensor, scale: float) -> torch.Tensor:
        """Returns the kept values times `scale`, and zeros in place of the others."""
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return keep(states, kept).mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Scales the gradient of the kept values; the gradient of the others is zero."""
        (kept,) = ctx.saved_tensors
        return scaled_keep(grad, kept, ctx.scale), None, None


def scaled_keep(states: torch.Tensor, kept: torch.Tensor, scale: float) -> torch.Tensor:
    """Applies `ScaledKeep`."""
    return cast(torch.Tensor, ScaledKeep.apply(states, kept, scale))  # type: ignore[no-untyped-call]


class CpuDropout(nn.Dropout):
    """Dropout that draws faster."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Drops values of states of any shape."""
        drops = self.training and 0 < self.p < 1
        if not drops or not computes_here(states):
            return super().forward(states)
        return scaled_keep(states, draw_kept(states.shape, self.p), dropout_scale(self.p))


# --- Packed attention -----------------------------------------------------------------------------------------------


class PackedAttention(torch.autograd.Function):
    """Attention of packed sequences on the CPU with its own backward pass: one product per group of similar length.

    Most pre-training sequences have the full length, so a group contains many sequences with little or no padding, and
    batches of fine-tuning make few groups (`attention_groups`). PyTorch's attention on the CPU has a fused kernel only
    without dropout, and its backward pass is slower than this one. With dropout it computes everything in 32 bits and
    draws one element at a time. As in flash kernels, scores and probabilities have 32 bits, and products read 16.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        lengths: list[int],
        scaling: float,
        dropout: float,
        causal: bool,
    ) -> torch.Tensor:
        """Attends within each sequence.

        Args:
            ctx: stores tensors for the backward pass.
            query: (1, A, T, D).
            key: (1, A, T, D).
            value: (1, A, T, D).
            lengths: tokens of each sequence, T in all.
            scaling: factor on the scores.
            dropout: dropout probability on the attention probabilities.
            causal: whether later tokens are hidden.

        Returns:
            The attended values (1, T, A, D).
        """
        # Lay the sequences out in groups, (T', A, D).
        groups = attention_groups(tuple(lengths), query.shape[1])
        queries, keys, values = (groups.gather(packed[0].transpose(0, 1)) for packed in (query, key, value))
        attended = queries.new_empty(queries.shape)
        ctx.groups = groups
        ctx.scaling = scaling
        ctx.scale = dropout_scale(dropout)

        precise = torch.promote_types(query.dtype, torch.float32)
        saved: list[torch.Tensor | None] = []
        with torch.autocast("cpu", enabled=False):
            by_group = zip(*(groups.split(tensor) for tensor in (queries, keys, values, attended)), strict=True)
            for padding, (group_q, group_k, group_v, output) in zip(groups.padding, by_group, strict=True):
                # (sequences x A, tokens, D) each.
                q, k, v = (tensor.flatten(0, 1) for tensor in (group_q, group_k, group_v))

                # Scores in 32 bits, minus infinity for padding and for later tokens.
                scores = torch.bmm(q.to(precise) * scaling, k.to(precise).transpose(1, 2))
                if padding is not None:
                    scores.view(*output.shape[:2], *scores.shape[1:]).masked_fill_(padding, -torch.inf)
                if causal:
                    is_later = torch.ones(scores.shape[1:], dtype=torch.bool).triu_(1)
                    scores.masked_fill_(is_later, -torch.inf)
                probabilities = scores.softmax(-1)

                # Dropout, then the products with the values, written to their places in `attended`.
                kept = draw_kept(scores.shape, dropout) if dropout else None
                dropped = keep(probabilities.to(v.dtype), kept)
                torch.mul(torch.bmm(dropped, v).view(output.shape), ctx.scale, out=output)
                saved += [q, k, v, probabilities, kept]
        ctx.save_for_backward(*saved)
        return groups.scatter(attended).unsqueeze(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Maps the gradient (1, T, A, D) to those of query, key and value, (1, A, T, D)."""
        groups: AttentionGroups = ctx.groups
        grad = groups.gather(grad[0]) * ctx.scale
        # The values that padding attended to are in no output.
        if groups.is_token is not None:
            grad.mul_(groups.is_token)
        gradients = [grad.new_empty(grad.shape) for _ in range(3)]

        # Five tensors were saved for each group.
        tensors = list(ctx.saved_tensors)
        saved = [tensors[start : start + 5] for start in range(0, len(tensors), 5)]
        with torch.autocast("cpu", enabled=False):
            by_group = zip(*(groups.split(tensor) for tensor in (*gradients, grad)), strict=True)
            for (q, k, v, probabilities, kept), (grad_q, grad_k, grad_v, group_grad) in zip(
                saved, by_group, strict=True
            ):
                g = group_grad.flatten(0, 1)

                # Through the product with the values.
                dropped = keep(probabilities.to(v.dtype), kept)
                grad_v.copy_(torch.bmm(dropped.transpose(1, 2), g).view(grad_v.shape))
                grad_dropped = torch.bmm(g.type_as(probabilities), v.type_as(probabilities).transpose(1, 2))

                # Through dropout and softmax.
                grad_probabilities = keep(grad_dropped, kept)
                grad_scores = torch.ops.aten._softmax_backward_data(
                    grad_probabilities, probabilities, -1, grad_dropped.dtype
                )
                grad_scores = grad_scores.mul_(ctx.scaling).to(q.dtype)

                # Through the product of queries and keys.
                grad_q.copy_(torch.bmm(grad_scores, k).view(grad_q.shape))
                grad_k.copy_(torch.bmm(grad_scores.transpose(1, 2), q).view(grad_k.shape))

        packed_gradients = [groups.scatter(tensor).transpose(0, 1).unsqueeze(0) for tensor in gradients]
        return *packed_gradients, None, None, None, None


@dataclass(frozen=True)
class AttentionGroups:
    """Packed sequences in groups of similar length, each group padded to its longest sequence.

    Args:
        sizes: number of sequences and tokens of each sequence, for every group.
        padding: (sequences, 1, 1, tokens) for every group, true after the end of a sequence; None without padding.
        tokens: (T',) position of the token at each place of the groups; padding repeats a sequence's last token. None
            if all tokens are in place already.
        places: (T,) place of each token in the groups; None if all tokens are in place already.
        is_token: (T', 1, 1) false at padding; None without padding.
    """

    sizes: list[tuple[int, int]]
    padding: list[torch.Tensor | None]
    tokens: torch.Tensor | None
    places: torch.Tensor | None
    is_token: torch.Tensor | None

    def gather(self, states: torch.Tensor) -> torch.Tensor:
        """Maps (T, A, D) to (T', A, D), the groups one after the other."""
        if self.tokens is None:
            return states
        return states.index_select(0, self.tokens)

    def scatter(self, states: torch.Tensor) -> torch.Tensor:
        """Maps (T', A, D) to (T, A, D), the sequences in their own order."""
        if self.places is None:
            return states
        return states.index_select(0, self.places)

    def split(self, states: torch.Tensor) -> list[torch.Tensor]:
        """Views (T', A, D) as one (sequences, A, tokens, D) for each group."""
        parts = torch.split(states, [sequences * tokens for sequences, tokens in self.sizes])
        views: list[torch.Tensor] = []
        for part, size in zip(parts, self.sizes, strict=True):
            views.append(part.view(*size, *part.shape[1:]).transpose(1, 2))
        return views


# All layers of a model ask for the same groups.
@functools.lru_cache(maxsize=4)
def attention_groups(lengths: tuple[int, ...], heads: int) -> AttentionGroups:
    """Groups sequences of similar length.

    Args:
        lengths: tokens of each sequence; 0 for empty sequences, to which offsets are padded.
        heads: attention heads, which share the cost of a group.

    Returns:
        The groups, the longest sequences first.
    """
    # The longest sequences first; empty ones are in no group.
    ends = list(itertools.accumulate(lengths))
    numbers = [number for number, length in enumerate(lengths) if length]
    order = sorted(numbers, key=lambda number: -lengths[number])
    sizes = group_sizes([lengths[number] for number in order], heads)

    # For each group: the token at each place, and whether it is padding.
    padding: list[torch.Tensor] = []
    tokens: list[torch.Tensor] = []
    for num_sequences, longest in sizes:
        group, order = order[:num_sequences], order[num_sequences:]
        last = torch.tensor([ends[number] - 1 for number in group], device="cpu").unsqueeze(1)
        first = torch.tensor([ends[number] - lengths[number] for number in group], device="cpu").unsqueeze(1)
        positions = first + torch.arange(longest, device="cpu")
        padding.append((positions > last)[:, None, None])
        tokens.append(positions.minimum(last).flatten())

    # The inverse: the place of each token.
    token_at_place = torch.cat(tokens)
    is_token = ~torch.cat([mask.flatten() for mask in padding])
    places = torch.empty(ends[-1], dtype=torch.long, device="cpu")
    places[token_at_place[is_token]] = is_token.nonzero().squeeze(1)

    # Nothing has to be moved if the sequences come in this order and without padding.
    if torch.equal(places, token_at_place):
        return AttentionGroups(sizes, [None] * len(sizes), None, None, None)
    group_padding = [mask if mask.any() else None for mask in padding]
    has_padding = not bool(is_token.all())
    return AttentionGroups(
        sizes, group_padding, token_at_place, places, is_token[:, None, None] if has_padding else None
    )


def group_sizes(lengths: list[int], heads: int) -> list[tuple[int, int]]:
    """Divides sequences into groups so that padding and the number of groups together cost least.

    Args:
        lengths: tokens of each sequence, in descending order.
        heads: attention heads.

    Returns:
        The number of sequences and the longest of every group.
    """
    # Sequences of equal length stay together: (number of sequences, length).
    runs = [(len(list(run)), length) for length, run in itertools.groupby(lengths)]

    # best[n]: the cheapest division of the first n runs into groups: its cost, the runs before its last group, and the
    # sequences of that group.
    best: list[tuple[float, int, int]] = [(0.0, 0, 0)]
    for end in range(1, len(runs) + 1):
        choices: list[tuple[float, int, int]] = []
        num_sequences = 0
        for start in range(end - 1, -1, -1):
            # The last group begins with run `start`, the longest of it.
            num_sequences += runs[start][0]
            longest = runs[start][1]
            cost = best[start][0] + GROUP_COST / heads + num_sequences * longest**2
            choices.append((cost, start, num_sequences))
        best.append(min(choices))

    # Follow the choices back from the end.
    sizes: list[tuple[int, int]] = []
    end = len(runs)
    while end:
        _, start, num_sequences = best[end]
        sizes.append((num_sequences, runs[start][1]))
        end = start
    return sizes[::-1]


def packed_attention_on_cpu(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **packing: Any,
) -> tuple[torch.Tensor, None]:
    """Computes the same as `packed_attention_forward`, with the same arguments; on the CPU with `PackedAttention`."""
    if not computes_here(query):
        return packed_attention_forward(module, query, key, value, attention_mask, scaling, dropout, **packing)
    lengths = packing["cu_seq_lens_q"].diff().tolist()
    # The tokens that `round_tokens_up` added are a sequence of their own.
    lengths.append(query.shape[2] - sum(lengths))
    attended = PackedAttention.apply(  # type: ignore[no-untyped-call]
        query, key, value, lengths, scaling, dropout, module.is_causal
    )
    return attended, None


ALL_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, packed_attention_on_cpu)


# --- Cross-entropy --------------------------------------------------------------------------------------------------


class CrossEntropyByRows(torch.autograd.Function):
    """Mean cross-entropy over a vocabulary on the CPU, and its gradient in the same pass, some rows at a time.

    PyTorch's kernels write the logits in 32 bits, their logarithms, a gradient of zeros and two more gradients, each
    many times as large as the cache. Here the current rows stay in the cache, and only the gradient is written.
    """

    ROWS = 32  # at a time

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, ignore_index: int) -> torch.Tensor:
        """Maps logits (P, V) and labels (P,) to a scalar in at least 32 bits, zero when no label counts."""
        is_counted = (labels != ignore_index).unsqueeze(1)
        precise = torch.promote_types(logits.dtype, torch.float32)
        weights = is_counted.to(precise) / is_counted.sum().clamp(min=1)
        # A label that does not count is replaced by a valid one, whose weight is 0.
        valid_labels = labels.unsqueeze(1).where(is_counted, 0)

        losses = torch.empty_like(weights)
        grad = torch.empty_like(logits)
        num_rows = CrossEntropyByRows.ROWS
        buffers = torch.empty(2, min(num_rows, len(logits)), logits.shape[1], dtype=precise)
        with torch.autocast("cpu", enabled=False):
            parts = (torch.split(tensor, num_rows) for tensor in (logits, valid_labels, weights, losses, grad))
            for rows, label, weight, loss, row_grads in zip(*parts, strict=True):
                scores, probabilities = buffers[:, : len(rows)]
                scores.copy_(rows)
                torch.softmax(scores, -1, out=probabilities)

                # The loss is log(sum(exp(scores))) - score of the label. The largest probability is
                # 1 / sum(exp(scores - largest score)); the label's may be too small for a logarithm.
                largest = scores.amax(-1, keepdim=True)
                log_largest_probability = probabilities.amax(-1, keepdim=True).log()
                torch.sub(largest - scores.gather(1, label), log_largest_probability, out=loss)

                # The gradient is (probability - 1 for the label) times the row's weight.
                row_grads.copy_(probabilities.mul_(weight).scatter_add_(1, label, -weight))
            ctx.save_for_backward(grad)
            return (losses * weights).where(is_counted, 0).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Scales the gradient that the forward pass has computed."""
        (logits_grad,) = ctx.saved_tensors
        # A pass over all logits is saved in the usual case.
        if grad.item() != 1:
            logits_grad = logits_grad * grad
        return logits_grad, None, None


def token_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Computes the same as `mean_cross_entropy`; over a vocabulary on the CPU with `CrossEntropyByRows`."""
    flat = logits.flatten(0, -2)
    if flat.shape[-1] >= MANY_CLASSES and flat.requires_grad and computes_here(flat):
        loss = CrossEntropyByRows.apply(flat, labels.flatten(), IGNORED_LABEL)  # type: ignore[no-untyped-call]
        return cast(torch.Tensor, loss)
    return mean_cross_entropy(logits, labels)
