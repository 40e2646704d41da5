# /// script
# requires-python = ">=3.11"
# dependencies = ["bert-repro"]
# ///
r"""Measures the pre-training examples that a corpus and settings give, before
compute is spent on them.

    python recipes/audit_pretraining_data.py --corpus runs/corpus \
      --output_dir runs/audit

Give it the example settings of the pre-training to come: --max_seq_length,
--nsp_sampling, --masked_lm_prob, --whole_word_masking, --dupe_factor ... It
draws the first epoch as training would and checks, among others:

- the fraction of NotNext (50% with --nsp_sampling paper), whether B follows A
  where it must, and whether the other documents are drawn evenly;
- the exact count of predictions in every sequence (15%), their places, that
  labels are the text and [CLS] and [SEP] are never predicted;
- [MASK], random and unchanged (80/10/10; the paper's Table 8 for others) and
  the special tokens among the random ones;
- duplicate and too short documents, and a vocabulary that does not fit.

Fractions must lie where 99.9% of correct samples lie. It also reports lengths
and what padding would cost.

Writes audit.json, audit.txt and audit.png. Exit code 0: all checks passed; 2:
one failed, the line says which, what was found and what to do.
Cost: about 10 seconds for 200,000 sequences on one core, plus one pass over
the documents.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("audit_pretraining_data")
