"""Stands for trainer.task and trainer.evaluate in tests of plans: `python -m pretend DO FOLDER`."""

import json
import os
import pathlib
import sys
import time

if __name__ == "__main__":
    do, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    report = folder / "report" / "val"
    if do == "fail":
        sys.exit("error: --data is damaged.")
    if do == "crash":
        sys.exit(3)
    if do == "stop":
        sys.exit(75)
    if do == "environment":
        sys.exit(any(name.startswith("AIP_") for name in os.environ))
    if do == "wait":
        (folder / "began").touch()
        end = time.monotonic() + 20
        while len(list(folder.parent.glob("*/began"))) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        sys.exit(0 if len(list(folder.parent.glob("*/began"))) > 1 else "error: it was alone.")
    if do == "evaluate":
        report.mkdir(parents=True)
        (report / "scores.json").write_text(json.dumps({"captions": {}}))
