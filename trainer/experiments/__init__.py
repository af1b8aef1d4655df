"""The paper's experiments: rows to train, runs, tables, claims, figures, and their pages.

    rows -> runs -> results -> tables, claims, figures -> page

`trainer.paper` is the program. A row says what is trained and how it is evaluated; everything after
`runs` reads what the evaluations wrote, and trains nothing.
"""
