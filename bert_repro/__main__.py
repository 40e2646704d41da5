"""`python -m bert_repro RECIPE` and `accelerate launch -m bert_repro RECIPE`: as `bert-repro RECIPE`."""

from bert_repro.cli import console

if __name__ == "__main__":
    console()
