"""From the files of a dataset to batches: readers, records, pipeline."""
