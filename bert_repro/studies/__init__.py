"""The paper's tables and Figure 5 as plans, at any scale."""
