"""The page one looks at after an evaluation: its data, its template and its plots."""
