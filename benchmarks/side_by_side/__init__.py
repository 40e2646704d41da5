"""What the benchmarks share: workloads in processes of their own, corpora, both sides' steps, results."""
