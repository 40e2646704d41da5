"""The paper's studies as plans: Tables 5 to 8 and Figure 5, at any scale."""
