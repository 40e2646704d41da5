"""Lists the paper's claims: where each is in the code, what tests it, and what came of it.

    python recipes/claims.py --status reversed

All flags: --help_all.
"""

from bert_repro.cli import main

if __name__ == "__main__":
    main("claims")
