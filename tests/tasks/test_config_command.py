"""The configuration reference covers every setting, and its page is up to date."""

from tasks.config import PipelineConfig
from tasks.config_command import markdown_page, reference
from tasks.config_file import load_config
from tasks.version import PROJECT_ROOT


def test_every_setting_is_documented():
    rows = {key: (kind, default, meaning) for key, kind, default, meaning in reference()}
    assert all(meaning for _, _, meaning in rows.values())
    assert rows["data.window_days"][:2] == ("int", "14")
    assert rows["gate.promote"][:2] == ("auto or ask or never", "auto")
    assert rows["lake"][1] == "required"
    assert "tables.<name>.vocabulary.min_count" in rows
    assert "model.user.features[].pooling" in rows
    assert {key.partition(".")[0] for key in rows} >= PipelineConfig.model_fields.keys() - {
        "tables"
    }


def test_page_is_what_the_command_prints():
    page = (PROJECT_ROOT / "docs" / "configuration.md").read_text()
    assert page == markdown_page(), "run: tailtower config --markdown > docs/configuration.md"


def test_a_file_is_printed_with_its_defaults(capsys):
    import yaml

    from tasks.config_command import config_command

    demo = PROJECT_ROOT / "conf" / "demo.yaml"
    config_command(demo)
    printed = yaml.safe_load(capsys.readouterr().out)
    assert PipelineConfig.model_validate(printed) == load_config(demo)
