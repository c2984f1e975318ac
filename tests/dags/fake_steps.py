"""Plays `python -m tasks`: answers like the steps do and notes every call.

The folder in FAKE_STEPS holds `script.json`, which maps a step (or `train.ROLE`) to the list of
answers of its calls, the last one for all further calls: an exit status, or a result. Calls are
noted in `calls.jsonl`.
"""

import json
import os
import sys
from pathlib import Path

import click


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("step")
@click.option("--run-spec")
@click.option("--role")
@click.option("--config")
@click.option("--day")
@click.option("--set", "settings", multiple=True)
@click.option("--force", is_flag=True)
@click.option("--dry-run", is_flag=True)
def main(step, **options) -> None:
    folder = Path(os.environ["FAKE_STEPS"])
    name = f"{step}.{options['role']}" if options["role"] else step
    call = {"step": step, **{key: value for key, value in options.items() if value}}
    with (folder / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(call) + "\n")
    counter = folder / f"{name}.count"
    count = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(count + 1))
    answers = json.loads((folder / "script.json").read_text()).get(name, [{}])
    answer = answers[min(count, len(answers) - 1)]
    print(json.dumps({"event": "working", "step": name}), file=sys.stderr)
    if isinstance(answer, int):
        print(f"error: {name} ends with {answer}", file=sys.stderr)
        sys.exit(answer)
    print(json.dumps({"step": name, "outputs": {}, "digests": {}, "facts": {}} | answer))


if __name__ == "__main__":
    assert sys.argv[1:3] == ["-m", "tasks"], sys.argv
    main(sys.argv[3:])
