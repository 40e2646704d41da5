"""Useful floating-point operations of training, so that speeds of different sizes and lengths can be compared.

Counted are the matrix products of real tokens, a multiply-add as two operations. Not counted: padding, embeddings
look-ups, LayerNorm, activations, the pooler and the optimiser (together under 1% at the paper's sizes).
"""


def flops_per_token(
    num_hidden_layers: int,
    hidden_size: int,
    vocab_size: int,
    sequence_length: float,
    *,
    intermediate_size: int | None = None,
    predicted_fraction: float = 0.15,
) -> float:
    """Operations of one token's forward and backward pass (the backward pass costs two forward passes).

    Args:
        num_hidden_layers: layers (the paper's L).
        hidden_size: hidden size (H).
        vocab_size: tokens the MLM head scores (V).
        sequence_length: tokens each token attends to, on average (S; half of it where attention is causal).
        intermediate_size: feed-forward size (F); default 4H, as in every model of the paper.
        predicted_fraction: share of tokens the MLM head decodes: 0.15 when only predicted positions are decoded, 1
            when all are (stock transformers), 0 for an encoder without the head.

    Returns:
        Floating-point operations per token; 545 million for BERT-base at 128 tokens.
    """
    feed_forward = intermediate_size if intermediate_size is not None else 4 * hidden_size
    projections = 2 * (4 * hidden_size**2 + 2 * hidden_size * feed_forward)
    attention = 4 * sequence_length * hidden_size
    mlm_head = 2 * (hidden_size**2 + hidden_size * vocab_size)
    forward = num_hidden_layers * (projections + attention) + predicted_fraction * mlm_head
    return 3 * forward
