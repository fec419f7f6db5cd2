"""Write data of AppWorld's layout with three made-up tasks and empty apps: PYTHON_WITH_APPWORLD this_file FOLDER."""

import json
import os
import sys
from pathlib import Path

ROOT = Path(sys.argv[1])
os.environ["APPWORLD_ROOT"] = str(ROOT)

from appworld.apps import get_all_apps  # noqa: E402
from appworld.collections.api_docs import ApiDocCollection  # noqa: E402
from appworld.collections.models import ModelCollection  # noqa: E402

PERSON = {"first_name": "Ada", "last_name": "Nobody", "email": "ada@example.com", "phone_number": "5550000001"}
METADATA = {
    "difficulty": 1,
    "mode": "minimal",
    "num_apps": 0,
    "num_apis": 0,
    "num_api_calls": 0,
    "num_solution_code_lines": 1,
}
TESTS = {"assert answers match.": "no_op_fail", "assert no model changes.": "no_op_pass"}
EVALUATION = """
import json


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    with test("assert answers match."):
        test.answer(json.loads(models.end.supervisor.Task.all()[0].answer), ground_truth_answer)
    with test("assert no model changes."):
        test.case(models.changed_model_names(), "==", set())
"""


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def make_task(task_id, number):
    folder = ROOT / "data" / "tasks" / task_id
    instruction = f"What is {number} plus {number}?"
    dbs = folder / "dbs"
    dbs.mkdir(parents=True)
    models = ModelCollection.load(
        from_db_home_path=str(dbs), to_db_home_path=str(dbs), load_apps=get_all_apps(), create_db=True
    )
    models.admin.MainUser(**PERSON, birthday="1990-01-01", sex="female").save()
    supervisor = models.supervisor.Supervisor(**PERSON, birthday="1990-01-01", sex="female")
    supervisor.save()
    models.supervisor.Task(supervisor_id=supervisor.id, instruction=instruction).save()
    models.close()
    specs = {"instruction": instruction, "supervisor": PERSON, "datetime": "2023-05-18T12:00:00", "db_version": "0.1.0"}
    write(folder / "specs.json", specs)
    truth = folder / "ground_truth"
    write(truth / "metadata.json", METADATA)
    write(truth / "public_data.json", {})
    write(truth / "private_data.json", {})
    write(truth / "answer.json", 2 * number)
    write(truth / "test_data.json", [{"requirement": text, "label": label} for text, label in TESTS.items()])
    write(truth / "evaluation.py", EVALUATION)


for app, documents in ApiDocCollection.build(load_apps=tuple(get_all_apps(skip_admin=True))).items():
    for document in documents.values():
        document["canary_string"] = ""
    write(ROOT / "data" / "api_docs" / "standard" / f"{app}.json", documents)
for n in (1, 2, 3):
    make_task(f"abc{n}_1", n)
write(ROOT / "data" / "datasets" / "train.txt", "abc1_1\nabc2_1:tag\n\nabc3_1\n")
