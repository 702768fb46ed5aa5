"""What the programs refuse to start with, and what they show of their settings. No stack is needed: settings are
judged before anything is opened."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import accounts
import pages
from effects import CONSUMERS

KAFKA = (*CONSUMERS, "relay")
SECRET = "hunter2,with=all#of\\it"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """All that the programs require, in one environment."""
    token = tmp_path / "token"
    token.write_text("a token of the orders API\n")
    return {"PAYONCE_DSN": "postgresql://me@127.0.0.1:1/payonce", "PAYONCE_KAFKA_BROKERS": "127.0.0.1:1",
            "PAYONCE_REGISTRY_URL": "http://127.0.0.1:1", "PAYONCE_SMTP_URL": "smtp://127.0.0.1:1",
            "PAYONCE_MAIL_FROM": "receipts@shop.example", "PAYONCE_API_TOKEN_FILE": str(token),
            "PAYONCE_ACCOUNTS_FILE": str(accounts.write(tmp_path / "secrets"))}


@pytest.fixture
def kafka_file(tmp_path: Path, env: dict[str, str]) -> Path:
    file = tmp_path / "kafka.properties"
    env["PAYONCE_KAFKA_SETTINGS_FILE"] = str(file)
    return file


def call(programs: Path, name: str, command: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([programs / f"payonce-{name}", command], env=env, capture_output=True, text=True, timeout=60)


def refused(programs: Path, name: str, env: dict[str, str], *words: str) -> None:
    """By check-config as at start, and with nothing secret in the words."""
    for command in ("check-config", "run"):
        got = call(programs, name, command, env)
        assert got.returncode == 2 and all(w in got.stderr for w in words), f"{name} {command}: {got}"
        assert "hunter2" not in got.stdout + got.stderr


def shown(programs: Path, name: str, env: dict[str, str]) -> dict[str, str]:
    got = call(programs, name, "print-config", env)
    assert got.returncode == 0, got
    assert "hunter2" not in got.stdout + got.stderr
    lines = map(json.loads, got.stdout.splitlines())
    return {line["name"].removeprefix("PAYONCE_"): line["value"] for line in lines}


@pytest.mark.parametrize("name", KAFKA)
def test_secrets_among_other_settings_are_not_printed(programs: Path, env: dict[str, str], kafka_file: Path,
                                                      name: str) -> None:
    """FAULTS 60: any password can be written, and what is printed hides what is not known to be harmless."""
    kafka_file.write_text("# ours\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=me\n"
                          f"sasl.password={SECRET}\nssl.key.password=hunter2\n")
    env["PAYONCE_REGISTRY_URL"] = "https://me:hunter2@registry:8081/apis?key=hunter2"
    env["PAYONCE_DSN"] = "postgresql://me:hunter2@db/payonce?sslpassword=hunter2"
    assert call(programs, name, "check-config", env).stdout == "ok\n"
    values = shown(programs, name, env)
    assert values["KAFKA_SETTINGS_FILE"] == ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=me\n"
                                        "sasl.password=***\nssl.key.password=***")
    assert "KAFKA_SETTINGS" not in values and "ADMIN_TOKEN_FILE" in values, "names that can be set"
    assert values["REGISTRY_URL"] == "https://***@registry:8081/apis?***"
    assert "host=db" in values["DSN"] and "user=me" in values["DSN"]


@pytest.mark.parametrize("name", KAFKA)
def test_an_unusable_kafka_file_is_told_without_its_values(programs: Path, env: dict[str, str], kafka_file: Path,
                                                           name: str) -> None:
    """FAULTS 60: neither a bad value nor a line that is no setting is repeated."""
    for text, words in {"security.protocol=hunter2": "security.protocol has a bad value",
                        "\nhunter2": "line 2", "hunter2=x": "line 1",
                        "ssl.ca.location=/nowhere/hunter2": "line 1"}.items():
        kafka_file.write_text(text)
        refused(programs, name, env, "PAYONCE_KAFKA_SETTINGS_FILE", words)


@pytest.mark.parametrize("setting", [
    "group.id=x", "enable.auto.commit=true", "enable.auto.offset.store=true", "auto.offset.reset=latest",
    "isolation.level=read_uncommitted", "partition.assignment.strategy=cooperative-sticky", "session.timeout.ms=6000",
    "enable.idempotence=false", "acks=1", "max.in.flight=100", "message.timeout.ms=1000", "partitioner=consistent",
    "plugin.library.paths=/x.so", "opaque=1", "bootstrap.servers=other:9092", "client.id=x"])
def test_what_the_promises_rest_on_is_refused_by_name(programs: Path, env: dict[str, str], kafka_file: Path,
                                                      setting: str) -> None:
    """FAULTS 61: neither what the programs set nor what they leave at its default is open to the operator."""
    kafka_file.write_text("security.protocol=plaintext\n" + setting)
    for name in KAFKA:
        refused(programs, name, env, "PAYONCE_KAFKA_SETTINGS_FILE", f"Kafka setting {setting.partition('=')[0]} ")


ADDRESSES = {
    "ADMIN_LISTEN": ("ingest", *KAFKA), "LISTEN": ("ingest",), "KAFKA_BROKERS": KAFKA, "REGISTRY_URL": KAFKA,
    "SMTP_URL": ("receipts",), "DSN": ("ingest", *KAFKA)}


@pytest.mark.parametrize("setting, value", [
    ("ADMIN_LISTEN", ":9090"), ("ADMIN_LISTEN", "9090"), ("LISTEN", ":8080"), ("LISTEN", "localhost:8080"),
    ("LISTEN", ""), ("DSN", "host=db port=99999"),
    ("KAFKA_BROKERS", "kafka"), ("KAFKA_BROKERS", "kafka:9092;other:9092"), ("REGISTRY_URL", "registry:8081"),
    ("REGISTRY_URL", "http://"), ("REGISTRY_URL", "ftp://registry"), ("SMTP_URL", "mail:25"),
    ("SMTP_URL", "smtp://mail:port"), ("DSN", "db:5432/hunter2")])
def test_an_address_is_judged_before_it_is_used(programs: Path, env: dict[str, str], setting: str, value: str) -> None:
    """FAULTS 66: check-config says what the start would say."""
    for name in ADDRESSES[setting]:
        refused(programs, name, env | {f"PAYONCE_{setting}": value}, f"PAYONCE_{setting}")


@pytest.mark.parametrize("name", ["ingest", *KAFKA])
def test_a_name_that_no_program_knows_is_refused(programs: Path, env: dict[str, str], name: str) -> None:
    """FAULTS 66: a slip of the pen is named with what was meant; one environment may serve all programs."""
    assert call(programs, name, "check-config", env).stdout == "ok\n"
    refused(programs, name, env | {"PAYONCE_WRITRS": "4"}, "PAYONCE_WRITRS is no setting; names like it: PAYONCE_WRITERS\n")
    refused(programs, name, env | {"PAYONCE_KAFKA_EXTRA": "a=hunter2"}, "PAYONCE_KAFKA_EXTRA is no setting; ",
            "PAYONCE_KAFKA_SETTINGS_FILE")
    links = {"PAYONCE_INGEST_SERVICE_HOST": "10.0.0.1", "PAYONCE_INGEST_SERVICE_PORT": "8080",
             "PAYONCE_INGEST_PORT": "tcp://10.0.0.1:8080", "PAYONCE_INGEST_PORT_8080_TCP_PROTO": "tcp"}
    assert call(programs, name, "check-config", env | links).stdout == "ok\n"


def test_every_program_knows_the_names_of_all(programs: Path, env: dict[str, str]) -> None:
    """FAULTS 66: what docs/settings.md lists is a stranger to none of them."""
    text = (pages.ROOT / "docs/settings.md").read_text()
    names = set(re.findall(r"^\| `(PAYONCE_\w+)`", text, re.M)) | set(re.findall(r"or `(PAYONCE_\w+_FILE)`", text))
    assert len(names) > 30
    for name in ("ingest", *KAFKA):
        got = call(programs, name, "check-config", dict.fromkeys(names, "") | env)
        assert "is no setting" not in got.stderr


def test_a_short_token_is_refused_by_the_limit_that_the_page_states(programs: Path, env: dict[str, str],
                                                                     tmp_path: Path) -> None:
    """FAULTS 66: check, message and page speak of one limit."""
    text = (pages.ROOT / "docs/settings.md").read_text()
    [least] = {int(n) for n in re.findall(r"`PAYONCE_API_TOKEN_FILE` \| secret file \| ≥ (\d+) bytes", text)}
    token = tmp_path / "short"
    env["PAYONCE_API_TOKEN_FILE"] = str(token)
    token.write_text("t" * least)
    assert call(programs, "ingest", "check-config", env).stdout == "ok\n"
    token.write_text("t" * (least - 1))
    refused(programs, "ingest", env, f"PAYONCE_API_TOKEN is shorter than {least} bytes")


@pytest.mark.parametrize("token", [b"t" * 32 + b"\n\n", b"t" * 32 + "é".encode(), b"t" * 32 + b" ", b"\t" + b"t" * 32])
def test_a_token_that_no_header_can_hold_is_refused(programs: Path, env: dict[str, str], tmp_path: Path,
                                                   token: bytes) -> None:
    (tmp_path / "token").write_bytes(token)
    refused(programs, "ingest", env, "PAYONCE_API_TOKEN_FILE")


@pytest.mark.parametrize("text", [None, "", "{", "[]", '[{"provider": "nobody"}]'])
def test_an_unusable_accounts_file_is_told_by_the_name_of_its_setting(programs: Path, env: dict[str, str],
                                                                     tmp_path: Path, text: str | None) -> None:
    """FAULTS 66: whatever is wrong with it, the line says which setting to look at."""
    file = tmp_path / "accounts.json"
    env["PAYONCE_ACCOUNTS_FILE"] = str(file)
    if text is not None:
        file.write_text(text)
    refused(programs, "ingest", env, "payonce-ingest: PAYONCE_ACCOUNTS_FILE: ")


def test_a_fifo_is_not_waited_for(programs: Path, env: dict[str, str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for setting in ("API_TOKEN_FILE", "ACCOUNTS_FILE"):
        refused(programs, "ingest", env | {f"PAYONCE_{setting}": str(tmp_path / "fifo")}, str(setting))
