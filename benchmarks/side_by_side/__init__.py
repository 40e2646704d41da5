"""What the benchmarks share: contenders in processes of their own, corpora, both sides' steps, records, plots."""
