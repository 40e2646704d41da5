r"""Converts TriviaQA to SQuAD's JSON, for the step before SQuAD (paper 4.2, Table 2).

    python recipes/convert_triviaqa.py --qa_file triviaqa-rc/qa/wikipedia-train.json \
      --evidence_dir triviaqa-rc/evidence --output_file runs/triviaqa.json

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("convert_triviaqa")
