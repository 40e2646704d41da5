"""Kernels of our own for training on a CPU: dropout, packed attention, cross-entropy over a vocabulary.

`use_cpu_kernels(model)` switches them on for one model when its training starts; the published modeling file does not
know them. They compute what PyTorch's do. The draws of dropout are others, and sums are rounded in another order.

Shapes: A attention heads, D = hidden size / A, T tokens of all packed sequences, P predicted positions, V vocabulary.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .modeling_bert_repro import (
    IGNORED_LABEL,
    BertReproModel,
    BertReproTokenPredictor,
    mean_cross_entropy,
    packed_attention_forward,
)

DROPOUT_STEPS = 1 << 16
GROUP_COST = 1 << 15
"""What one more product of packed attention costs on a CPU, in scores of all heads: measured on two of them."""
MANY_CLASSES = 1024
PACKED_ATTENTION = "packed_cpu"


def use_cpu_kernels(model: nn.Module) -> None:
    """Makes a model compute with these kernels wherever its tensors are on the CPU and nothing compiles.

    Args:
        model: one of our models, not yet wrapped.
    """
    for module in list(model.modules()):
        if isinstance(module, BertReproModel):
            module.packed_attention = PACKED_ATTENTION
        if isinstance(getattr(module, "bert", None), BertReproModel):
            module.bert.encoder.register_forward_pre_hook(round_tokens_up, with_kwargs=True)
            LastLayer(module)
        if isinstance(module, BertReproTokenPredictor):
            module.token_loss = token_cross_entropy
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, CpuDropout(child.p).train(child.training))


def computes_here(states: torch.Tensor) -> bool:
    """Whether a tensor is on the CPU and nothing compiles."""
    return states.device.type == "cpu" and not torch.compiler.is_compiling()


# --- Few shapes -----------------------------------------------------------------------------------------------------


def round_tokens_up(encoder: nn.Module, args: tuple[Any, ...], packing: dict[str, Any]) -> Any:
    """Adds up to 3% of tokens, of zeros, to the states of packed sequences in training, so that few shapes occur.

    Every batch has another number of tokens. For each, the C library finds no freed block of just that size, so memory
    grows from step to step, and oneDNN makes new kernels. Added tokens attend to each other; their gradient is zero.
    """
    states, tokens = args[0], args[0].shape[1]
    if encoder.training and packing.get("cu_seq_lens_q") is not None and computes_here(states):
        states = nn.functional.pad(states, (0, 0, 0, -tokens % (1 << max(0, tokens.bit_length() - 6))))
    return (states, *args[1:]), packing


# --- Last layer -----------------------------------------------------------------------------------------------------


class LastLayer:
    """Lets the last layer compute only the packed tokens that the head reads: a sixth of them in pre-training.

    They are the predicted tokens, and the one of each sequence that is pooled. The states of the others become zeros;
    they still are keys and values of the attention. Tokens that `round_tokens_up` added are dropped.

    Args:
        model: a model with a head.
    """

    def __init__(self, model: nn.Module) -> None:
        self.tokens: int | None = None
        self.places: torch.Tensor | None = None
        self.head_called = False
        last = model.bert.encoder.layer[-1]
        for module in (model, model.bert):
            module.register_forward_pre_hook(self.choose, with_kwargs=True)
        last.attention.output.register_forward_pre_hook(self.take)
        last.register_forward_hook(self.put_back)

    def choose(self, model: Any, _: Any, inputs: dict[str, Any]) -> None:
        """Chooses tokens, up to 63 more so that few shapes occur; none where all are read or shown."""
        is_head = hasattr(model, "bert")
        if self.head_called and not is_head:  # it has chosen for its encoder
            self.head_called = False
            return
        self.tokens, self.places, self.head_called = None, None, is_head
        offsets, predicted = inputs.get("cu_seq_lens_q"), inputs.get("prediction_positions")
        if offsets is None or not computes_here(offsets):
            return
        self.tokens = int(offsets[-1])
        if inputs.get("output_hidden_states", model.config.output_hidden_states) or not is_head:
            return
        if predicted is None and (isinstance(model, BertReproTokenPredictor) or model.bert.pooler is None):
            return
        read = torch.zeros(self.tokens, dtype=torch.bool)
        read[offsets[:-1].clamp(max=self.tokens - 1) if model.config.pool_token == "first" else offsets[1:] - 1] = True
        if predicted is not None:
            read[predicted] = True
        read[(~read).nonzero()[: -int(read.sum()) % 64, 0]] = True
        self.places = read.nonzero()[:, 0]

    def take(self, _: Any, states: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Maps what attended and the residual, (1, T, H) each, to (1, R, H)."""
        return states if self.places is None else tuple(each.index_select(1, self.places) for each in states)

    def put_back(self, _: Any, args: tuple[torch.Tensor, ...], states: torch.Tensor) -> torch.Tensor:
        """Maps (1, R, H) to (1, T, H)."""
        if self.places is None:
            return states[:, : self.tokens]
        return states.new_zeros(1, self.tokens, states.shape[2]).index_copy(1, self.places, states)


# --- Dropout --------------------------------------------------------------------------------------------------------


def draw_kept(shape: torch.Size, probability: float) -> torch.Tensor:
    """Draws what dropout keeps, on the CPU.

    PyTorch's generator there is serial and draws one element at a time. 64 bits at a time, 16 for each element, take a
    sixth of the time; the probability is rounded to a 65,536th (0.1 becomes 0.1000061).

    Args:
        shape: shape of what is dropped from.
        probability: how much is dropped.

    Returns:
        int16, all bits set where a value is kept and none where it is dropped.
    """
    count = shape.numel()
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    kept = torch.empty(shape, dtype=torch.int16)
    torch.ge(draws[:count].view(shape), round(probability * DROPOUT_STEPS) - DROPOUT_STEPS // 2, out=kept)
    return kept.neg_()


def keep(states: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    """Sets to zero what dropout does not keep, without a look at the values.

    Args:
        states: floating-point numbers.
        kept: of `draw_kept` for the same shape; None keeps all.

    Returns:
        A new tensor, or `states` where all is kept.
    """
    if kept is None:
        return states
    kept = kept.to({2: torch.int16, 4: torch.int32, 8: torch.int64}[states.dtype.itemsize])
    return (states.view(kept.dtype) & kept).view(states.dtype)


def dropout_scale(probability: float) -> float:
    """Returns what kept values are multiplied with, so that the expectation stays the same."""
    return DROPOUT_STEPS / (DROPOUT_STEPS - round(probability * DROPOUT_STEPS))


class ScaledKeep(torch.autograd.Function):
    """Dropout with what is kept already drawn."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, kept: torch.Tensor, scale: float) -> torch.Tensor:
        """Returns the kept states times `scale`, and zeros."""
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return keep(states, kept).mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Scales the gradient of what was kept."""
        return ScaledKeep.apply(grad, *ctx.saved_tensors, ctx.scale), None, None


class CpuDropout(nn.Dropout):
    """Dropout with quicker draws."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Drops from states of any shape."""
        if not (self.training and 0 < self.p < 1 and computes_here(states)):
            return super().forward(states)
        return ScaledKeep.apply(states, draw_kept(states.shape, self.p), dropout_scale(self.p))


# --- Packed attention -----------------------------------------------------------------------------------------------


class PackedAttention(torch.autograd.Function):
    """Attention of packed sequences on the CPU, with its own backward pass: one product for sequences of like length.

    Most pre-training sequences have the full length, so a group holds many sequences with little or no padding, and
    batches of fine-tuning make few groups (`attention_groups`). PyTorch's CPU attention has a fused kernel without
    dropout only, whose backward pass is slower than this; with dropout it computes everything in 32 bits and draws one
    element at a time. As in flash kernels, scores and probabilities are 32 bits wide, and products read halves.
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
            ctx: what the backward pass needs.
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
        ctx.groups = groups = attention_groups(tuple(lengths), query.shape[1])
        ctx.scaling, ctx.scale = scaling, dropout_scale(dropout)
        precise = torch.promote_types(query.dtype, torch.float32)
        states = [groups.gather(packed[0].transpose(0, 1)) for packed in (query, key, value)]
        attended = states[0].new_empty(states[0].shape)
        saved = []
        with torch.autocast("cpu", enabled=False):
            split = zip(*(groups.split(each) for each in (*states, attended)), strict=True)
            for padding, (q, k, v, output) in zip(groups.padding, split, strict=True):
                q, k, v = (each.flatten(0, 1) for each in (q, k, v))
                scores = torch.bmm(q.to(precise) * scaling, k.to(precise).transpose(1, 2))
                if padding is not None:
                    scores.unflatten(0, output.shape[:2]).masked_fill_(padding, -torch.inf)
                if causal:
                    scores.masked_fill_(torch.ones(scores.shape[1:], dtype=torch.bool).triu_(1), -torch.inf)
                probabilities = scores.softmax(-1)
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
        groups = ctx.groups
        grad = groups.gather(grad[0]) * ctx.scale
        if groups.real is not None:
            grad.mul_(groups.real)  # what padding attended to is in no output
        gradients = [grad.new_empty(grad.shape) for _ in range(3)]
        saved = zip(*[iter(ctx.saved_tensors)] * 5, strict=True)
        with torch.autocast("cpu", enabled=False):
            split = zip(*(groups.split(each) for each in (*gradients, grad)), strict=True)
            for (q, k, v, probabilities, kept), (dq, dk, dv, g) in zip(saved, split, strict=True):
                g = g.flatten(0, 1)
                dropped = keep(probabilities.to(v.dtype), kept)
                dv.copy_(torch.bmm(dropped.transpose(1, 2), g).view(dv.shape))
                dp = torch.bmm(g.type_as(probabilities), v.type_as(probabilities).transpose(1, 2))
                ds = torch.ops.aten._softmax_backward_data(keep(dp, kept), probabilities, -1, dp.dtype)
                ds = ds.mul_(ctx.scaling).to(q.dtype)
                dq.copy_(torch.bmm(ds, k).view(dq.shape))
                dk.copy_(torch.bmm(ds.transpose(1, 2), q).view(dk.shape))
        return *(groups.scatter(each).transpose(0, 1).unsqueeze(0) for each in gradients), None, None, None, None


@dataclass(frozen=True)
class AttentionGroups:
    """Packed sequences as groups of like length, each padded to its longest.

    Args:
        sizes: sequences and tokens of each, for every group.
        padding: (sequences, 1, 1, tokens) of every group, true behind the end of a sequence; None without padding.
        tokens: (T',) the token that lies at each place of the groups, a sequence's last one again where it is padded;
            None where all lie as they come.
        places: (T,) the place of each token; None likewise.
        real: (T', 1, 1) false at padding; None without any.
    """

    sizes: list[tuple[int, int]]
    padding: list[torch.Tensor | None]
    tokens: torch.Tensor | None
    places: torch.Tensor | None
    real: torch.Tensor | None

    def gather(self, states: torch.Tensor) -> torch.Tensor:
        """Maps (T, A, D) to (T', A, D), the groups one after the other."""
        return states if self.tokens is None else states.index_select(0, self.tokens)

    def scatter(self, states: torch.Tensor) -> torch.Tensor:
        """Maps (T', A, D) to (T, A, D), the sequences in their own order."""
        return states if self.places is None else states.index_select(0, self.places)

    def split(self, states: torch.Tensor) -> list[torch.Tensor]:
        """Views (T', A, D) as one (sequences, A, tokens, D) for each group."""
        parts = states.split([sequences * tokens for sequences, tokens in self.sizes])
        return [part.unflatten(0, size).transpose(1, 2) for part, size in zip(parts, self.sizes, strict=True)]


@functools.lru_cache(maxsize=4)  # the layers of a model ask for the same
def attention_groups(lengths: tuple[int, ...], heads: int) -> AttentionGroups:
    """Groups sequences of like length.

    Args:
        lengths: tokens of each sequence; 0 where offsets are padded to a fixed count.
        heads: attention heads, which share the costs of a group.

    Returns:
        The groups, the longest sequences first.
    """
    ends = list(itertools.accumulate(lengths))
    order = sorted((number for number, length in enumerate(lengths) if length), key=lambda number: -lengths[number])
    sizes = group_sizes([lengths[number] for number in order], heads)
    padding, tokens = [], []
    for sequences, longest in sizes:
        group, order = order[:sequences], order[sequences:]
        last = torch.tensor([ends[number] - 1 for number in group], device="cpu").unsqueeze(1)
        first = torch.tensor([ends[number] - lengths[number] for number in group], device="cpu").unsqueeze(1)
        laid = first + torch.arange(longest, device="cpu")
        padding.append((laid > last)[:, None, None])
        tokens.append(laid.minimum(last).flatten())
    at_places = torch.cat(tokens)
    real = ~torch.cat([each.flatten() for each in padding])
    places = torch.empty(ends[-1], dtype=torch.long, device="cpu")
    places[at_places[real]] = real.nonzero().squeeze(1)
    if torch.equal(places, at_places):
        return AttentionGroups(sizes, [None] * len(sizes), None, None, None)
    seen = [each if each.any() else None for each in padding]
    return AttentionGroups(sizes, seen, at_places, places, None if real.all() else real[:, None, None])


def group_sizes(lengths: list[int], heads: int) -> list[tuple[int, int]]:
    """Splits sequences into groups so that padding and the number of groups together cost least.

    Args:
        lengths: tokens of each sequence, falling.
        heads: attention heads.

    Returns:
        The number of sequences and the longest of every group.
    """
    runs = [(len(list(run)), length) for length, run in itertools.groupby(lengths)]
    best: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # of the first runs: cost, runs before the last group, its size
    for end in range(1, len(runs) + 1):
        choices, sequences = [], 0
        for start in range(end - 1, -1, -1):
            sequences += runs[start][0]
            cost = best[start][0] + GROUP_COST / heads + sequences * runs[start][1] ** 2
            choices.append((cost, start, sequences))
        best.append(min(choices))
    sizes, end = [], len(runs)
    while end:
        _, start, sequences = best[end]
        sizes.append((sequences, runs[start][1]))
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
    """Computes what `packed_attention_forward` does, with the same arguments; on the CPU as `PackedAttention`."""
    if not computes_here(query):
        return packed_attention_forward(module, query, key, value, attention_mask, scaling, dropout, **packing)
    lengths = packing["cu_seq_lens_q"].diff().tolist()
    lengths.append(query.shape[2] - sum(lengths))  # of `round_tokens_up`
    return PackedAttention.apply(query, key, value, lengths, scaling, dropout, module.is_causal), None


ALL_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, packed_attention_on_cpu)


# --- Cross-entropy --------------------------------------------------------------------------------------------------


class CrossEntropyByRows(torch.autograd.Function):
    """Mean cross-entropy over a vocabulary on the CPU, and its gradient in the same pass, some rows at a time.

    PyTorch's writes the logits in 32 bits, their logarithms, a gradient of zeros and two more gradients, each as large
    as a cache many times over. Here the current rows stay in the cache, and the gradient alone is written.
    """

    ROWS = 32

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, ignore_index: int) -> torch.Tensor:
        """Maps logits (P, V) and labels (P,) to a scalar in at least 32 bits, zero when no label counts."""
        counts = (labels != ignore_index).unsqueeze(1)
        precise = torch.promote_types(logits.dtype, torch.float32)
        weights = counts.to(precise) / counts.sum().clamp(min=1)
        right = labels.unsqueeze(1).where(counts, 0)
        losses, grad = torch.empty_like(weights), torch.empty_like(logits)
        buffers = torch.empty(2, min(CrossEntropyByRows.ROWS, len(logits)), logits.shape[1], dtype=precise)
        with torch.autocast("cpu", enabled=False):
            parts = (each.split(CrossEntropyByRows.ROWS) for each in (logits, right, weights, losses, grad))
            for rows, label, weight, loss, row_grads in zip(*parts, strict=True):
                scores, shares = buffers[:, : len(rows)]
                scores.copy_(rows)
                torch.softmax(scores, -1, out=shares)
                # The largest share is 1 / sum(exp(scores - largest)); that of the label may be too small for a number.
                largest = scores.amax(-1, keepdim=True)
                torch.sub(largest - scores.gather(1, label), shares.amax(-1, keepdim=True).log(), out=loss)
                row_grads.copy_(shares.mul_(weight).scatter_add_(1, label, -weight))
            ctx.save_for_backward(grad)
            return (losses * weights).where(counts, 0).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Scales the gradient that is there already."""
        (made,) = ctx.saved_tensors
        return made if grad.item() == 1 else made * grad, None, None


def token_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Computes what `mean_cross_entropy` does; over a vocabulary on the CPU as `CrossEntropyByRows`."""
    flat = logits.flatten(0, -2)
    if flat.shape[-1] >= MANY_CLASSES and flat.requires_grad and computes_here(flat):
        return CrossEntropyByRows.apply(flat, labels.flatten(), IGNORED_LABEL)
    return mean_cross_entropy(logits, labels)
