"""Makes the paper's tables, figures and claims from runs of its own, under the paper's rows.

Example:

    python -m trainer.paper --data flickr8k=data/flickr8k,iaprtc12=data/iapr --runs runs/paper \\
        --output docs/results --tables generation,retrieval,rerank,variants --seeds 3 --jobs 2

Every row is trained by trainer.task and evaluated by trainer.evaluate; stopped, the same command
goes on, and what is finished is not made again. It writes paper.md, paper.json and paper.html: the
published rows beside ours with their mean and spread, the command of each row, the figures, and
whether the paper's claims hold. The datasets whose published rows are known are iaprtc12, flickr8k,
flickr30k and coco: name them so, as in --data coco=DIR. --notrain writes the pages from the runs
that are finished. The tables presets and photographs are made where they are asked for.
"""

from mrnn_tf import program
from trainer.options import PaperOptions

if __name__ == "__main__":  # before all other imports: --help needs no TensorFlow
    program.main("trainer.paper:make_tables", PaperOptions)

from mrnn_tf.errors import UserError
from trainer.experiments import claims, figures, page, results, runs, tables


def make_tables(options: PaperOptions) -> page.PaperPage:
    """Makes the runs that are missing, and the pages of those that are finished."""
    planned = runs.plan(options)
    failed = runs.make(planned, options.jobs) if options.train else {}
    found = results.read(planned)
    if not any(dataset.rows for dataset in found):
        raise UserError(_failures(failed, planned) or "No run is finished: leave --notrain away.")
    made = page.PaperPage(
        options=options,
        names=[dataset.name for dataset in found],
        tables=[
            part for dataset in found for name in options.tables
            for part in tables.make(name, dataset)
        ],
        verdicts=[verdict for dataset in found for verdict in claims.verdicts(dataset)],
        figures=list(filter(None, map(figures.make, found))),
        missing=[f"{dataset.name}/{run}" for dataset in found for run in dataset.missing],
        notes=[note for dataset in found for note in tables.notes(options.tables, dataset)],
    )  # fmt: skip
    paths = page.write(made, options.output)
    for verdict in made.verdicts:
        print(f"{verdict.verdict:>14}  {verdict.claim} ({verdict.dataset})")
    print(f"next: open {paths[-1]}")
    if failed:  # at the end, so that nothing that is finished is lost
        raise UserError(_failures(failed, planned))
    return made


def _failures(failed: dict[str, str], planned: list[runs.PlannedRun]) -> str:
    if not failed:
        return ""
    name, sentence = next(iter(failed.items()))
    return f"{len(failed)} of {len(planned)} runs failed, the first is {name}: {sentence}"
