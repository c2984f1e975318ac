"""Every mistake in a configuration is one message with the line, the key and what to do."""

import textwrap

import pytest

from tasks.config import PipelineConfig
from tasks.config_file import load_config, load_yaml
from tasks.errors import ConfigError
from tasks.version import PROJECT_ROOT

DEMO = PROJECT_ROOT / "conf" / "demo.yaml"

GOOD = """\
name: shop
lake: lake
tables:
  user: {source: interactions.user_id}
  item:
    source: interactions.item_id
    vocabulary:
      min_count: 5
model:
  user:
    features:
      - {name: id, table: user}
      - {name: history, table: item, kind: history}
  item:
    features:
      - {name: id, table: item}
"""


@pytest.fixture
def write(tmp_path):
    def _write(text):
        path = tmp_path / "pipeline.yaml"
        path.write_text(textwrap.dedent(text))
        return path

    return _write


def test_shipped_configurations_are_valid():
    for path in sorted((PROJECT_ROOT / "conf").glob("*.yaml")):
        assert load_config(path).name


def test_defaults_and_values(write):
    config = load_config(write(GOOD))
    assert config.tables["item"].vocabulary.min_count == 5
    assert config.tables["item"].vocabulary.kept_from == 2.5
    assert config.tables["user"].vocabulary.min_count == 10
    assert config.roles == ("candidate", "popularity", "traditional")
    assert config.history_length == 50


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        (
            "min_count: 5",
            "min_cuont: 5",
            8,
            ["unknown key 'min_cuont'", "did you mean 'min_count'"],
        ),
        ("min_count: 5", "min_count: lots", 8, ["valid integer", "lots"]),
        ("min_count: 5", "min_count: 0", 8, ["greater than or equal to 1"]),
        ("lake: lake", "lake: lake\nlaek: x", 3, ["unknown key 'laek'", "did you mean 'lake'"]),
        ("lake: lake", "lake: lake\nlake: x", 3, ["key 'lake' is given twice"]),
        ("lake: lake", "lake: [unclosed", 3, ["not valid YAML"]),
        (
            "kind: history}",
            "kind: histry}",
            13,
            ["'neighbours' or 'numeric'", "histry"],
        ),
        (
            "- {name: id, table: item}",
            "- {name: id, table: itme}",
            1,
            ["model.item.features.id", "no table 'itme'", "item, user"],
        ),
    ],
)
def test_mistakes_name_line_and_cure(write, old, new, line, words):
    path = write(GOOD.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    for word in words:
        assert word in message
    assert f"{path}:{line}" in message


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "holds no settings"), ("- a\n- b\n", "holds no settings"), ("just words", "holds no")],
)
def test_files_without_settings_are_refused(write, text, words):
    with pytest.raises(ConfigError, match=words):
        load_config(write(text))


def test_missing_file_is_one_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load_config(tmp_path / "none.yaml")


def test_overrides_replace_the_file_and_are_blamed_when_wrong(write):
    path = write(GOOD)
    config = load_config(path, ["training.epochs=7", "tables.item.vocabulary.min_count=3"])
    assert config.training.epochs == 7
    assert config.tables["item"].vocabulary.min_count == 3
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["training.epochs=7", "training.epocs=7"])
    assert "--set training.epocs=7" in str(caught.value)
    assert "did you mean 'epochs'" in str(caught.value)
    with pytest.raises(ConfigError, match="not a setting"):
        load_config(path, ["training"])
    with pytest.raises(ConfigError, match="holds a value"):
        load_config(path, ["name.x=1"])


def test_off_is_a_word_and_not_false(write):
    path = write(GOOD + "data: {validation: off, allow_gaps: true}\n")
    config = load_config(path, ["training.loss.logq=off"])
    assert config.data.validation == "off"
    assert config.data.allow_gaps is True
    assert config.training.loss.logq == "off"
    with pytest.raises(ConfigError, match="valid boolean"):
        load_config(path, ["data.allow_gaps=maybe"])


def test_a_star_sets_every_entry(write):
    config = load_config(write(GOOD), ["tables.*.vocabulary.min_count=3"])
    assert {table.vocabulary.min_count for table in config.tables.values()} == {3}
    with pytest.raises(ConfigError) as caught:
        load_config(write(GOOD), ["tables.*.dim=five"])
    assert "--set tables.*.dim=five" in str(caught.value)


def test_digest_ignores_addresses_but_not_settings(write):
    path = write(GOOD)
    base = load_config(path).digest()
    assert load_config(path, ["lake=elsewhere", "dask.workers=9"]).digest() == base
    assert load_config(path, ["tracking.uri=http://127.0.0.1:1"]).digest() == base
    assert load_config(path, ["training.seed=1"]).digest() != base


def test_any_model_can_be_read_from_yaml(write):
    from models.config import OptimizerSettings

    assert load_yaml(write("learning_rate: 0.5"), OptimizerSettings).learning_rate == 0.5


def test_a_loss_of_cosines_needs_cosines(write):
    path = write(GOOD + "training: {loss: {kind: ccl}}\n")
    assert load_config(path).training.loss.kind == "ccl"
    with pytest.raises(ConfigError, match=r"set model\.similarity: cosine"):
        load_config(path, ["model.similarity=dot"])


SCHEDULER = "dask: {scheduler: 'tls://scheduler:8786'}\n"


def ranks(config):
    return config.training.nproc, config.launch.nodes, config.training.table_ranks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (1, "1", None)),
        ("cluster: {worker_num: 4}\n", (4, "1", None)),
        ("cluster: {worker_num: 4, ps_num: 2}\n", (4, "1", 2)),
        (SCHEDULER + "launch: {kind: dask, nodes: 2}\n", (1, "2", None)),
        (SCHEDULER + "launch: {kind: dask}\ncluster: {worker_num: 4}\n", (1, "4", None)),
        (
            SCHEDULER + "launch: {kind: dask}\ncluster: {worker_num: 4}\ntraining: {nproc: 2}\n",
            (2, "2", None),
        ),
    ],
)
def test_workers_of_a_parameter_server_are_ranks(write, text, expected):
    config = load_config(write(GOOD + text))
    assert ranks(config) == expected
    # What was read once and written out says the same again.
    assert PipelineConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cluster: {worker_num: 2, ps_num: 3}\n", "ps_num: tables are spread over ranks"),
        ("cluster: {worker_num: 2}\ntraining: {nproc: 3}\n", "training.nproc: 3 contradicts"),
        ("cluster: {worker_num: 2, ps: 1}\n", "unknown key 'ps'"),
        ("cluster: {worker_num: none}\n", "cluster.worker_num"),
        (
            SCHEDULER + "launch: {kind: dask}\ncluster: {worker_num: 3}\ntraining: {nproc: 2}\n",
            "3 ranks do not fill nodes of training.nproc: 2",
        ),
        ("launch: {nodes: 2}\n", "kind local has one node"),
        ("launch: {kind: dask, nodes: 2}\n", "needs the address of a scheduler"),
        (SCHEDULER + "launch: {kind: dask, nodes: '3:2'}\n", "no number of nodes"),
        (SCHEDULER + "launch: {kind: dask, nodes: many}\n", "no number of nodes"),
    ],
)
def test_ranks_that_do_not_add_up_are_refused(write, text, words):
    with pytest.raises(ConfigError, match=words):
        load_config(write(GOOD + text))


def test_how_ranks_are_started_does_not_change_what_a_run_computes(write):
    plain = load_config(write(GOOD))
    on_dask = load_config(write(GOOD + SCHEDULER + "launch: {kind: dask, nodes: '1:4'}\n"))
    assert (on_dask.launch.min_nodes, on_dask.launch.max_nodes) == (1, 4)
    assert on_dask.digest() == plain.digest()


def test_gradient_sharding_of_a_table_is_understood(write):
    config = load_config(write(GOOD), ["tables.item.gradient_sharding=true"])
    assert config.tables["item"].embedding().sharding == "column_wise"
    assert config.tables["user"].sharding == "auto"
    with pytest.raises(ConfigError, match="contradicts sharding: row_wise"):
        load_config(
            write(GOOD), ["tables.item.gradient_sharding=true", "tables.item.sharding=row_wise"]
        )
