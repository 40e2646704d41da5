"""The reproduction report: what runs left behind, beside the paper's numbers."""
