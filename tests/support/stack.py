"""The local stack: PostgreSQL, Kafka and the schema registry in a scratch folder, on free loopback ports.

`with Stack(programs) as stack:` brings the three up side by side, migrates every service that has been
built and creates the topics; leaving the block ends everything. `python stack.py serve FOLDER PROGRAMS`
does the same until SIGTERM and leaves FOLDER/env for a shell to source (see ./dev stack).
"""

import http.client
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import psycopg
from confluent_kafka import (Consumer, KafkaError, KafkaException, Message,
                             TopicPartition)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

import accounts
import process
from service import Answer, Service, call
from wait import until

__all__ = ["Answer", "Kafka", "Postgres", "Registry", "Service", "Stack", "call"]

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / "build/jars"
SERVICES = tuple(sorted(main.parent.name for main in ROOT.glob("services/*/main.c")))
T = TypeVar("T")
# Every address here is a number. Without a hosts file of its own Java asks the machine's resolver for the machine's
# name, which takes up to 20 s a program where nobody knows it.
JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djdk.net.hosts.file=/dev/null")
POSTGRES_SETTINGS = {
    "listen_addresses": "'127.0.0.1'",
    "max_connections": "200",
    "max_prepared_transactions": "20",
    "shared_buffers": "'256MB'",
    "max_wal_size": "'2GB'",
    "timezone": "'UTC'",
    "log_line_prefix": "'%m [%p] %u '",
}


def answered(ask: Callable[[], T], what: str) -> T:
    """What Kafka answers in the end, to a question that may be repeated: a broker that has just begun refuses some,
    a group whose last member is still leaving others, a slow one lets the time run out."""

    def asked() -> tuple[T]:
        try:
            return (ask(),)
        except (KafkaException, TimeoutError) as err:
            raise AssertionError(f"{what}: {err}") from err

    return until(asked, what=what)[0]


def topics() -> list[dict[str, Any]]:
    """As schemas/topics.json wants them."""
    file = ROOT / "schemas/topics.json"
    return json.loads(file.read_text()) if file.exists() else []


def scratch_folder(prefix: str = "payonce-") -> Path:
    """A new folder that user postgres can reach too; falls back to /tmp when TMPDIR is closed to others."""
    base = Path(tempfile.gettempdir()).resolve()
    if os.geteuid() == 0 and not all(p.stat().st_mode & 0o001 for p in (base, *base.parents)):
        base = Path("/tmp")
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    folder.chmod(0o755)
    return folder


class Postgres:
    """A private cluster: fsync on, trust on loopback only, stopped and started at will."""

    def __init__(self, scratch: Path, settings: dict[str, str] | None = None, name: str = "postgres") -> None:
        self.folder, self.log = scratch / name, scratch / f"{name}.log"
        self.port = process.free_port()
        self._settings = {**POSTGRES_SETTINGS, **(settings or {})}
        self._proc: subprocess.Popen[bytes] | None = None
        # PostgreSQL refuses to run as root.
        self._user = "postgres" if os.geteuid() == 0 else None

    def prepare(self) -> subprocess.Popen[bytes]:
        """Starts initdb; wait for it with process.finish()."""
        self.folder.mkdir()
        if self._user:
            who = pwd.getpwnam(self._user)
            os.chown(self.folder, who.pw_uid, who.pw_gid)
        self.folder.chmod(0o700)
        argv = (self._bin("initdb"), "--pgdata", self.folder / "data", "--username=postgres",
                "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
        return process.start(argv, self.log, user=self._user, cwd=Path("/"))

    def launch(self) -> None:
        options = {**self._settings, "port": str(self.port), "unix_socket_directories": f"'{self.folder}'"}
        conf = "".join(f"{k} = {v}\n" for k, v in options.items())
        (self.folder / "data/postgresql.auto.conf").write_text(conf)
        # SIGQUIT is PostgreSQL's immediate shutdown: the whole cluster goes when we are gone.
        self._proc = process.start([self._bin("postgres"), "-D", self.folder / "data"], self.log,
                                   user=self._user, death="QUIT", cwd=Path("/"))

    def wait_ready(self, timeout: float = 180) -> None:
        def answers() -> bool:
            # A predecessor that was killed may still hold its shared memory: then start again.
            if self._proc is None or self._proc.poll() is not None:
                self.launch()
            try:
                self.connect(dbname="postgres").close()
            except psycopg.OperationalError:
                return False
            return True

        try:
            until(answers, timeout, "PostgreSQL answers")
        except TimeoutError as err:
            raise TimeoutError(f"{err}\n{process.tail(self.log)}") from None

    def start(self) -> "Postgres":
        """Creates the cluster when there is none yet; returns once it answers."""
        if not (self.folder / "data").exists():
            process.finish(self.prepare(), self.log, "initdb")
        self.launch()
        self.wait_ready()
        return self

    def stop(self, mode: str = "fast") -> None:
        """fast: sessions are cut, checkpoint; immediate: no checkpoint, recovery at the next start."""
        process.end(self._proc, {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """SIGKILL to every process of the cluster, as the machine's end would."""
        backends = self._hold()
        for pid in backends:
            os.kill(pid, signal.SIGKILL)
        process.end(self._proc, signal.SIGKILL)
        until(lambda: all(map(process.gone, backends)), what="backends gone")

    def freeze(self) -> None:
        """SIGSTOP to every process: connections stay open, nothing answers."""
        for pid in self._hold():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Ends a freeze(); nothing to do when there is none."""
        for pid in self._hold():
            os.kill(pid, signal.SIGCONT)
        if self._proc is not None:
            self._proc.send_signal(signal.SIGCONT)

    def _hold(self) -> list[int]:
        """Stops the postmaster and returns its children. Until it goes on it starts none and reaps none, so
        each of these pids stays theirs, even when the process has ended."""
        if self._proc is None or self._proc.poll() is not None:
            return []
        pid = self._proc.pid
        os.kill(pid, signal.SIGSTOP)
        until(lambda: process.state(pid) in "TZ", what="postmaster stopped", every=0.001)
        return process.children(pid)

    def dsn(self, role: str = "postgres", dbname: str = "payonce") -> str:
        return f"postgresql://{role}@127.0.0.1:{self.port}/{dbname}"

    def connect(self, role: str = "postgres", dbname: str = "payonce",
                **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn(role, dbname), **{"autocommit": True, "connect_timeout": 60, **options})

    def query(self, sql: str, *params: Any, role: str = "postgres") -> list[tuple[Any, ...]]:
        """Rows of one statement on a connection of its own; [] when it returns none."""
        with self.connect(role) as conn:
            cursor = conn.execute(sql, params or None)
            return cursor.fetchall() if cursor.description else []

    @staticmethod
    def _bin(name: str) -> Path:
        found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"),
                       key=lambda p: float(p.parts[4]))
        path = str(found[-1]) if found else shutil.which(name)
        if path is None:
            raise FileNotFoundError(f"no {name}: install the server package of PostgreSQL")
        return Path(path)


class Kafka:
    """One broker that is its own controller (KRaft)."""

    def __init__(self, scratch: Path) -> None:
        self.folder, self.log = scratch / "kafka", scratch / "kafka.log"
        self.port, self._controller_port = process.free_port(), process.free_port()
        self._proc: subprocess.Popen[bytes] | None = None
        self._admin: AdminClient | None = None
        self._readers: dict[str, Consumer] = {}  # by group

    @property
    def brokers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> subprocess.Popen[bytes]:
        """Starts the formatting of the storage; wait for it with process.finish()."""
        self.folder.mkdir()
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://{self.brokers},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.brokers}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.folder / "data",
            "auto.create.topics.enable": "false",
            "broker.session.timeout.ms": 6000,  # how long a killed broker's successor is kept waiting
            "broker.heartbeat.interval.ms": 1000,
            "group.initial.rebalance.delay.ms": 0,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "log.cleaner.dedupe.buffer.size": 16 << 20,
        }
        self._properties.write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        return self._java("-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", "format",
                          "--cluster-id", "cGF5b25jZS1sb2NhbC1zdA", "--config", self._properties)

    def launch(self) -> None:
        self._proc = self._java("kafka.Kafka", self._properties)

    def wait_ready(self, timeout: float = 180) -> None:
        def answers() -> bool:
            if self._proc is None or self._proc.poll() is not None:
                raise RuntimeError(f"Kafka ended\n{process.tail(self.log)}")
            if not process.accepts(self.port):
                return False
            try:
                return bool(self.admin.list_topics(timeout=2).brokers)
            except KafkaException:
                return False

        until(answers, timeout, "Kafka answers")

    def start(self) -> "Kafka":
        if not self.folder.exists():
            process.finish(self.prepare(), self.log, "Kafka's storage format")
        self.launch()
        self.wait_ready()
        return self

    def stop(self) -> None:
        process.end(self._proc, signal.SIGTERM)

    def kill(self) -> None:
        process.end(self._proc, signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        assert self._proc is not None and self._proc.poll() is None
        self._proc.send_signal(signal.SIGSTOP)
        until(lambda: process.state(self._proc.pid) in "TZ", what="Kafka stands still", every=0.001)

    def thaw(self) -> None:
        """Ends a freeze(); nothing to do when there is none."""
        if self._proc is not None:
            self._proc.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.brokers, "log_level": 0})
        return self._admin

    def create_topic(self, name: str, partitions: int = 6, config: dict[str, str] | None = None) -> None:
        """With the settings that schemas/topics.json wants, unless told others."""
        if config is None:
            config = next((t.get("config") for t in topics() if t["name"] == name), None)
        new = NewTopic(name, partitions, 1, config={k: str(v) for k, v in (config or {}).items()})

        def create() -> None:
            try:
                self.admin.create_topics([new])[name].result(60)
            except KafkaException as err:  # there already: by a request whose answer has not come
                if err.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

        answered(create, f"topic {name} is made")
        until(lambda: len(self._partitions(name)) == partitions, what=f"topic {name} has its partitions")

    def delete_topic(self, name: str) -> None:
        """Returns when no broker knows it any more."""

        def delete() -> bool:
            try:
                self.admin.delete_topics([name])[name].result(60)
            except KafkaException as err:
                if err.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            return True

        answered(delete, f"topic {name} is deleted")
        until(lambda: name not in self.admin.list_topics(timeout=10).topics, what=f"topic {name} is gone", every=0.01)

    def remake(self, name: str, partitions: int = 6) -> None:
        """Deletes the topic and makes another of the same name and settings."""
        self.delete_topic(name)
        self.create_topic(name, partitions)

    def produce_by_java(self, topic: str, keys: list[str]) -> None:
        """A record for each key, sent by the producer of Kafka itself with its default partitioner."""
        lines = "".join(f"{key}\tx\n" for key in keys)
        subprocess.run([*self._java_command("org.apache.kafka.tools.ConsoleProducer"), "--bootstrap-server", self.brokers,
                        "--topic", topic, "--property", "parse.key=true"],
                       input=lines.encode(), check=True, timeout=120)

    def ends(self, topic: str) -> dict[int, int]:
        """The end offset of each partition."""
        return self._offsets(topic, OffsetSpec.latest())

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The offset a group has committed in each partition, 0 where there is none."""
        # By a consumer that never joins: the admin client can crash while the group's coordinator is still loading.
        reader = self._reader(group)

        def asked() -> list[TopicPartition]:
            got = reader.committed(self._partitions(topic), timeout=10)
            for p in got:
                if p.error is not None:
                    raise KafkaException(p.error)
            return got

        got = answered(asked, f"what {group} has committed")
        return {p.partition: max(p.offset, 0) for p in got}

    def _reader(self, group: str) -> Consumer:
        if group not in self._readers:
            self._readers[group] = Consumer({"bootstrap.servers": self.brokers, "group.id": group, "log_level": 0,
                                             "enable.auto.commit": False})
        return self._readers[group]

    def drained(self, group: str, topic: str) -> bool:
        """Whether the group has committed up to the end of every partition."""
        return self.committed(group, topic) == self.ends(topic)

    def rewind(self, group: str, topic: str) -> None:
        """Sends a group without members back to the first offset of every partition."""
        self.move(group, topic, self._offsets(topic, OffsetSpec.earliest()))

    def move(self, group: str, topic: str, to: dict[int, int]) -> None:
        """Sends a group without members to these offsets."""
        offsets = [TopicPartition(topic, p, at) for p, at in to.items()]
        reader = self._reader(group)
        answered(lambda: reader.commit(offsets=offsets, asynchronous=False), f"group {group} goes elsewhere")

    def records(self, topic: str, timeout: float = 120) -> list[Message]:
        """Every record from the first offset to the ends of this moment, in partition order."""
        begins, ends = self._offsets(topic, OffsetSpec.earliest()), self.ends(topic)
        out: list[Message] = []
        reader = Consumer({"bootstrap.servers": self.brokers, "group.id": "payonce-support", "log_level": 0,
                           "enable.auto.commit": False})
        try:
            reader.assign([TopicPartition(topic, p, at) for p, at in begins.items()])

            def done() -> bool:
                for m in reader.consume(2000, timeout=0.2):
                    if m.error() is None and m.offset() < ends[m.partition()]:
                        out.append(m)
                at = reader.position([TopicPartition(topic, p) for p in ends])
                return all(max(p.offset, begins[p.partition]) >= ends[p.partition] for p in at)

            until(done, timeout, f"{topic} read to its ends", every=0)
        finally:
            reader.close()
        return sorted(out, key=lambda m: (m.partition(), m.offset()))

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def _partitions(self, topic: str) -> list[TopicPartition]:
        """All of them, once each has a leader: for a moment after the broker's start none has, or is not even known."""

        def led() -> list[TopicPartition]:
            known = self.admin.list_topics(topic, timeout=10).topics[topic]
            if known.error is not None:
                raise KafkaException(known.error)
            assert known.partitions and all(p.leader >= 0 for p in known.partitions.values()), f"{topic} has leaders"
            return [TopicPartition(topic, p) for p in known.partitions]

        return answered(led, f"the partitions of {topic}")

    def _offsets(self, topic: str, which: OffsetSpec) -> dict[int, int]:
        def asked() -> dict[int, int]:
            answers = self.admin.list_offsets({p: which for p in self._partitions(topic)})
            return {p.partition: got.result(10).offset for p, got in answers.items()}

        return answered(asked, f"offsets of {topic}")

    def _java(self, *args: str | Path) -> subprocess.Popen[bytes]:
        return process.start(self._java_command(*args), self.log)

    def _java_command(self, *args: str | Path) -> list[str | Path]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return ["java", *JVM, f"-Djava.io.tmpdir={self.folder}", quiet, "-cp", f"{JARS}/kafka/*", *args]


class Registry:
    """Apicurio with the Confluent API; its store is a file in the scratch folder, so ids outlive a restart."""

    def __init__(self, scratch: Path) -> None:
        self.folder, self.log = scratch / "registry", scratch / "registry.log"
        self.port, self._management_port = process.free_port(), process.free_port()
        self._proc: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def launch(self) -> None:
        self.folder.mkdir(exist_ok=True)
        jar = next((JARS / "registry").glob("*-runner.jar"))
        env = {
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_HTTP_PORT": str(self.port),
            "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
            "QUARKUS_MANAGEMENT_PORT": str(self._management_port),
            "APICURIO_DATASOURCE_URL": f"jdbc:h2:file:{self.folder}/store",
        }
        self._proc = process.start(["java", *JVM, f"-Djava.io.tmpdir={self.folder}", "-XX:TieredStopAtLevel=1", "-jar",
                                    jar], self.log, env, cwd=self.folder)

    def wait_ready(self, timeout: float = 180) -> None:
        def answers() -> bool:
            if self._proc is None or self._proc.poll() is not None:
                raise RuntimeError(f"the registry ended\n{process.tail(self.log)}")
            try:
                return call("GET", self.url + "/subjects", timeout=5).status == 200
            except (OSError, http.client.HTTPException):
                return False

        until(answers, timeout, "the registry answers")

    def start(self) -> "Registry":
        self.launch()
        self.wait_ready()
        return self

    def stop(self) -> None:
        process.end(self._proc, signal.SIGTERM)

    def kill(self) -> None:
        process.end(self._proc, signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()


class Stack:
    """All of it, and the environment each service needs. `programs` holds payonce-NAME."""

    def __init__(self, programs: Path, partitions: int | None = None) -> None:
        self.programs = programs.resolve()
        self.scratch = scratch_folder()
        self.postgres = Postgres(self.scratch)
        self.kafka = Kafka(self.scratch)
        self.registry = Registry(self.scratch)
        self.accounts_file = accounts.write(self.scratch / "secrets")
        self.api_token = "demo-orders-token"
        self.api_token_file = self.scratch / "secrets/api-token"
        self.api_token_file.write_text(self.api_token + "\n")
        self.api_token_file.chmod(0o600)
        self._partitions = partitions

    def up(self) -> "Stack":
        try:
            self.registry.launch()
            initdb, storage = self.postgres.prepare(), self.kafka.prepare()
            process.finish(storage, self.kafka.log, "Kafka's storage format")
            self.kafka.launch()
            process.finish(initdb, self.postgres.log, "initdb")
            self.postgres.launch()
            self.postgres.wait_ready()
            with self.postgres.connect(dbname="postgres") as conn:
                conn.execute("CREATE DATABASE payonce")
            for name in self.built():
                self.migrate(name)
            self.kafka.wait_ready()
            self._create_topics()
            self.registry.wait_ready()
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """Ends everything at once: the scratch folder goes too, so nobody needs a clean shutdown."""
        self.registry.kill()
        self.kafka.kill()
        self.postgres.stop("immediate")
        shutil.rmtree(self.scratch, ignore_errors=True)

    def __enter__(self) -> "Stack":
        return self.up()

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.down()

    def built(self) -> list[str]:
        return [n for n in SERVICES if os.access(self.programs / f"payonce-{n}", os.X_OK)]

    def migrate(self, name: str, postgres: Postgres | None = None) -> None:
        """Runs the service's migrations if it has any; a second time is a no-op."""
        log = self.scratch / f"migrate-{name}.log"
        env = {"PAYONCE_MIGRATE_DSN": (postgres or self.postgres).dsn(), "PAYONCE_DSN": ""}
        argv = (self.programs / f"payonce-{name}", "migrate")
        process.finish(process.start(argv, log, env), log, f"payonce-{name} migrate")

    def env(self, name: str) -> dict[str, str]:
        """The settings of one service. receipts also wants PAYONCE_SMTP_URL."""
        env = {
            "PAYONCE_DSN": self.postgres.dsn(f"payonce_{name}"),
            "PAYONCE_ADMIN_LISTEN": "127.0.0.1:0",
            "PAYONCE_KAFKA_BROKERS": self.kafka.brokers,
            "PAYONCE_REGISTRY_URL": self.registry.url,
            "PAYONCE_LOG_LEVEL": "info",
        }
        own = {
            "ingest": {
                "PAYONCE_LISTEN": "127.0.0.1:0",
                "PAYONCE_API_TOKEN_FILE": str(self.api_token_file),
                "PAYONCE_ACCOUNTS_FILE": str(self.accounts_file),
            },
            "relay": {"PAYONCE_RELAY_OUTBOXES": "ingest"},
            "loyalty": {"PAYONCE_LOYALTY_RULES": "USD/2=100,EUR/2=100,JPY/0=100,KWD/3=1000,BTC/11=100000"},
            "receipts": {"PAYONCE_MAIL_FROM": "receipts@shop.example"},
        }
        return env | own.get(name, {})

    def service(self, name: str, env: dict[str, str] | None = None, label: str = "") -> Service:
        """A service of this stack, not yet started; `env` is added to its settings."""
        log = self.scratch / f"{label or name}.log"
        return Service(name, self.programs / f"payonce-{name}", self.env(name) | (env or {}), log, label)

    def _create_topics(self) -> None:
        for topic in topics():
            partitions = self._partitions or topic["partitions"]
            self.kafka.create_topic(topic["name"], partitions, topic.get("config"))


def serve(folder: Path, programs: Path) -> None:
    """Keeps a stack up until SIGTERM or SIGINT; FOLDER/env appears when it is usable."""
    env = folder / "env"
    try:
        with Stack(programs) as stack:
            lines = {
                "STACK_FOLDER": str(stack.scratch),
                "STACK_DSN": stack.postgres.dsn(),
                "PAYONCE_KAFKA_BROKERS": stack.kafka.brokers,
                "PAYONCE_REGISTRY_URL": stack.registry.url,
                "PAYONCE_ACCOUNTS_FILE": str(stack.accounts_file),
                "PAYONCE_API_TOKEN_FILE": str(stack.api_token_file),
            }
            text = "".join(f"export {k}='{v}'\n" for k, v in lines.items())
            (folder / "env.new").write_text(text)
            (folder / "env.new").rename(env)
            while True:
                signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        env.unlink(missing_ok=True)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] != "serve":
        sys.exit("usage: stack.py serve FOLDER PROGRAMS")
    serve(Path(sys.argv[2]), Path(sys.argv[3]))
