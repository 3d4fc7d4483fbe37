"""Does a collection lose or repeat anything when it is killed? At a hundred random points.

``python benchmarks/kill_and_resume.py`` collects with a fake GPU, whose times are known: SIGKILL at
a point, at every other seed one of an SQL statement, then the same command again. No GPU is needed.
"""

import sys
import tempfile
from pathlib import Path

import runner

# The fake GPU is the tests'; workers find it by the same path.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from kill_and_resume_trial import kill_and_resume, undisturbed

SEEDS = 100


def main() -> None:
    """Kill, go on, look; and keep the result."""
    options = runner.parser(__file__, __doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole = undisturbed(Path(folder) / "whole")
        found = [kill_and_resume(Path(folder) / str(i), i, whole) for i in range(SEEDS)]
    begun = [one for one in found if 0 < one.kept < len(whole.rows)]
    figures = {
        "seeds": SEEDS,
        "sound": sum(one.sound for one in found),
        "killed_amid_measurements": len(begun),
        "jobs_in_flight": sum(len(one.lost) for one in found),
        "jobs_run_twice": sum(one.twice for one in found),
        "points": [f"{one.point}: {one.kept} measurements kept" for one in found],
    }
    runner.write(options, {"measurements": len(whole.rows), "problems": 5}, figures)


if __name__ == "__main__":
    main()
