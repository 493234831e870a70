from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from verl_otel.collector.config import Config, ConfigErrors, load, load_default, only

GOOD = """
receivers: {otlp: {protocols: {http: {}}}}
exporters: {archive: {}}
service: {pipelines: {traces: {receivers: [otlp], exporters: [archive]}}}
"""


def broken(change: str) -> dict:
    """GOOD with ``a.b.c=value`` put in (value in YAML; ``-`` takes the key out)."""
    node = yaml.safe_load(GOOD)
    path, _, value = change.partition("=")
    *parents, last = path.split(".")
    place = node
    for parent in parents:
        place = place.setdefault(parent, {})
    if value == "-":
        del place[last]
    else:
        place[last] = yaml.safe_load(value)
    return node


def read(folder: Path, node: object) -> Config:
    file = folder / "collector.yaml"
    file.write_text(node if isinstance(node, str) else yaml.safe_dump(node))
    return load(file)


def refused(folder: Path, node: object) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        read(folder, node)
    return caught.value.lines


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("recievers={}", "recievers: unknown key; did you mean 'receivers'?"),
        (
            "receivers.otlp.protocols.http.endpont=x",
            "receivers.otlp.protocols.http.endpont: unknown key; did you mean 'endpoint'?",
        ),
        ("receivers.otlp.protocols={}", "receivers.otlp.protocols: name at least one of grpc and http"),
        ("receivers.otlp.protocols.http.endpoint=nowhere", "is no address; write it as 127.0.0.1:4318"),
        ("receivers.otlp.protocols.http.endpoint=0.0.0.0:4318", "listens beyond this machine"),
        ("receivers.otlp.protocols.http.max_request_body_size=huge", "is no size; write it as 512MiB"),
        ("exporters.archiv={}", "exporters.archiv: unknown key; did you mean 'archive'?"),
        ("exporters.console={}", "exporters.console: is in no pipeline"),
        ("exporters.archive.nonsense=1", "exporters.archive.nonsense"),
        ("exporters.archive.retry_on_failure={initial_interval: soon}", "is no duration; write it as 5s"),
        ("exporters.archive.retry_on_failure={enabled: false}", "loses data"),
        ("exporters=-", "exporters: configure at least one exporter"),
        ("service.pipelines.traces.exporters=[archve]", "exporter 'archve' is not configured; did you mean 'archive'?"),
        ("service.pipelines.tracs={}", "service.pipelines.tracs: unknown key; did you mean 'traces'?"),
        ("service.pipelines=-", "service.pipelines: configure at least one pipeline"),
        ("service.extensions=[health_check]", "extension 'health_check' is not configured"),
        ("extensions.health_check={}", "extensions.health_check: is not enabled"),
        ("exporters.archive=${env:NO_SUCH_VARIABLE_HERE}", "the environment has no NO_SUCH_VARIABLE_HERE"),
        ("processors.resource={attributes: [{key: a}]}", "processors.resource.attributes[0].action: '' is none of"),
        ("processors.resource={attributes: [{key: a, action: upsert}]}", "attributes[0].value: is missing"),
        (
            "processors.resource={attributes: [{key: a, action: upsert, from_attribute: b}]}",
            "processors.resource.attributes[0].from_attribute: unknown key",
        ),
        ("processors.resource=[1]", "processors.resource: must be a mapping, not list"),
        ("processors=[resource]", "processors: must be a mapping, not list"),
        ("receivers.otlp/second={protocols: {http: {}}}", "receivers: configure one receiver, otlp"),
        ("receivers.otlp.protocols.http.insecure_listen=perhaps", "insecure_listen: must be true or false"),
        ("service.pipelines.traces.exporters=[]", "service.pipelines.traces.exporters: must be a list of exporters"),
        ("service.pipelines.traces/2={receivers: [otlp], exporters: [archive]}", "gets traces from pipeline traces"),
        ("service.telemetry={logs: {level: warm}}", "did you mean 'warn'?"),
        ("exporters.archive=${HOME}", "write ${env:NAME}, or $${…} for the text itself"),
        ("exporters.otlp_http={endpoint: 'host:4318'}", "exporters.otlp_http.endpoint: 'host:4318' is no URL"),
        ("exporters.otlp_grpc={endpoint: host}", "exporters.otlp_grpc.endpoint: 'host' is no address"),
        ("exporters.otlp={endpoint: 'http://h:1', tls: {ca_file: /no/such}}", "tls.ca_file: there is no file /no/such"),
        ("exporters.otlp={endpoint: 'http://h:1', compression: zip}", "did you mean 'gzip'?"),
        ("exporters.otlp={endpoint: 'http://h:1', timeout: 5}", "is no duration; write it as 5s"),
        ("processors.batch={}", "processors.batch: unknown key"),
    ],
)
def test_each_mistake_is_one_line_with_its_path_and_what_to_do(tmp_path: Path, change: str, line: str) -> None:
    lines = refused(tmp_path, broken(change))
    assert any(line in said for said in lines), lines
    assert not any("\n" in said for said in lines)


def test_all_mistakes_of_a_file_are_said_at_once(tmp_path: Path) -> None:
    node = broken("recievers={}")
    node["exporters"]["archve"] = {}
    assert len(refused(tmp_path, node)) == 2


def test_a_key_given_twice_is_an_error_with_its_line(tmp_path: Path) -> None:
    (line,) = refused(tmp_path, GOOD + "exporters: {console: {}}\n")
    assert "line 5: key 'exporters' is given twice" in line


def test_yaml_anchors_and_merges_work(tmp_path: Path) -> None:
    text = """
receivers: {otlp: {protocols: {http: {}}}}
exporters: {console: {}}
service:
  pipelines:
    traces: &all {receivers: [otlp], exporters: [console]}
    logs: {<<: *all}
"""
    assert read(tmp_path, text).signals == {"traces", "logs"}


@pytest.mark.parametrize("text", ["[1, 2]", "just text", "a: [", "", "receivers: 5", "{[1]: 2}"])
def test_what_is_no_configuration_at_all_is_said(tmp_path: Path, text: str) -> None:
    assert refused(tmp_path, text)


def test_a_processor_before_a_sink_that_forwards_bytes_is_refused(tmp_path: Path) -> None:
    node = broken('exporters.otlp={endpoint: "http://127.0.0.1:4318"}')
    node["processors"] = {"resource": {"attributes": [{"key": "a", "action": "delete"}]}}
    node["service"]["pipelines"]["traces"].update(processors=["resource"], exporters=["archive", "otlp"])
    assert "cannot stand before otlp, which sends requests as they came" in " ".join(refused(tmp_path, node))


def test_environment_variables_and_their_defaults_are_put_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PORT", "4999")

    def endpoint(text: str) -> str | None:
        config = read(tmp_path, broken(f"receivers.otlp.protocols.http.endpoint={text}"))
        return config.http and config.http.endpoint

    assert endpoint("127.0.0.1:${env:SOME_PORT}") == "127.0.0.1:4999"
    assert endpoint("127.0.0.1:${env:NO_SUCH_PORT:-4998}") == "127.0.0.1:4998"


def test_two_dollars_are_one(tmp_path: Path) -> None:
    node = broken('exporters.otlp={endpoint: "http://h:1", headers: {key: "a$$b$${env:HOME}"}}')
    node["service"]["pipelines"]["traces"]["exporters"].append("otlp")
    config = read(tmp_path, node)
    assert config.exporters["otlp"].config["headers"] == {"key": "a$b${env:HOME}"}


def test_listening_beyond_this_machine_takes_as_many_words(tmp_path: Path) -> None:
    node = broken("receivers.otlp.protocols.http={endpoint: '0.0.0.0:4318', insecure_listen: true}")
    config = read(tmp_path, node)
    assert config.http is not None
    assert config.http.endpoint == "0.0.0.0:4318"


def test_components_may_have_names_and_each_receiver_its_own_limit(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """
receivers: {otlp/a: {protocols: {grpc: {max_recv_msg_size_mib: 4}, http: {max_request_body_size: 1000}}}}
processors: {resource/x: {attributes: [{key: k, value: v, action: insert}]}}
exporters: {console/one: {retry_on_failure: {max_interval: 1m30s}}, console/two: {}}
service:
  telemetry: {logs: {level: info}}
  pipelines:
    traces/a: {receivers: [otlp/a], processors: [resource/x], exporters: [console/one]}
    traces/b: {receivers: [otlp/a], exporters: [console/two]}
""",
    )
    assert config.grpc is not None
    assert config.http is not None
    assert (config.grpc.max_bytes, config.http.max_bytes) == (4 << 20, 1000)
    assert config.exporters["console/one"].retry.max_interval == 90
    assert config.processors_of("console/one") == {"traces": ["resource/x"]}
    assert config.processors_of("console/two") == {"traces": []}
    assert config.log_level == "info"


def test_a_sinks_process_gets_its_part_of_the_configuration_only(tmp_path: Path) -> None:
    node = broken('exporters.otlp={endpoint: "http://h:1", headers: {authorization: secret}}')
    node["service"]["pipelines"]["logs"] = {"receivers": ["otlp"], "exporters": ["otlp"]}
    config = read(tmp_path, node)
    assert "secret" not in str(only(config, "archive"))
    part = read(tmp_path, only(config, "otlp"))
    assert (list(part.exporters), part.signals) == (["otlp"], {"logs"})


def test_the_default_is_the_file_at_top_level_and_is_fine() -> None:
    import verl_otel.collector.config as package

    root = Path(__file__).parents[2]
    inside = Path(package.__file__).with_name("default.yaml")
    assert (root / "collector/config.yaml").read_text() == inside.read_text()
    assert "archive" in load_default().exporters


def test_check_says_what_is_wrong_and_exits_with_2(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(GOOD + "exportrs: {}\n")
    argv = [sys.executable, "-m", "verl_otel.cli.main", "collector", "--check", "--config", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "exportrs: unknown key; did you mean 'exporters'?" in done.stderr
    file.write_text(GOOD)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
