# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Scores sentences with a masked language model, or measures which sentence of a
minimal pair it prefers (BLiMP).

    python recipes/score_sentences.py --input_file texts.txt \
      --model_name_or_path google-bert/bert-base-uncased \
      --output_dir runs/scores

    python recipes/score_sentences.py --minimal_pairs blimp/ \
      --model_name_or_path google-bert/bert-base-uncased \
      --output_dir runs/blimp

The score is the pseudo-log-likelihood: every token is masked, one at a time,
and the logarithms of its probability are added up (Salazar et al., 2020). By
default the later pieces of the same word are masked too (Kauf and Ivanova,
2023); --method original masks one token only. Scores of sentences of different
lengths do not compare directly.

Expected: scores.jsonl, one object per text with the sum and every token's
value; or results.json with accuracy per paradigm, phenomenon and in all, and
the same as a table.
Cost: one forward pass of a sentence for each of its tokens.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("score_sentences")
