"""A Kafka broker in KRaft mode: jars from Maven Central, by version and hash, in a process that may be killed."""

from __future__ import annotations

import hashlib
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

PINS = Path(__file__).parent
MOST_SECONDS = 600


def fetch_jars(folder: Path) -> str:
    """Return why there are no jars, or an empty text when they are in the folder."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            return f"no {program}: a real Kafka broker is not tried"
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    command = ["mvn", "-q", "-B", "-f", str(PINS / "pom.xml"), *goal]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return f"mvn did not end within {MOST_SECONDS} s: a real Kafka broker is not tried"
    if done.returncode:
        return f"mvn failed, so a real Kafka broker is not tried: {(done.stdout + done.stderr)[-400:]}"
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.jar")}
    lines = (PINS / "jars.sha256").read_text().splitlines()
    assert found == {name: digest for digest, name in (line.split() for line in lines)}
    return ""


class KafkaBroker:
    """A broker and controller in one process, with its log in a folder."""

    def __init__(self, jars: Path, folder: Path) -> None:
        self._command = ["java", "-Xmx512m", "-cp", f"{jars}/*"]
        self._settings = folder / "server.properties"
        ports = _free_ports(2)
        self.servers = f"127.0.0.1:{ports[0]}"
        self._settings.write_text(_properties(folder / "data", *ports))
        tool = ["kafka.tools.StorageTool", "format", "-t", "A" * 22, "-c", str(self._settings)]
        subprocess.run([*self._command, *tool], check=True, capture_output=True, timeout=120)
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 2, "error_cb": lambda error: None})
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([*self._command, "kafka.Kafka", str(self._settings)], **quiet)  # type: ignore[call-overload]
        until = time.monotonic() + 120
        while time.monotonic() < until:
            try:
                if self.admin.list_topics(timeout=2).brokers:
                    return
            except confluent_kafka.KafkaException:
                time.sleep(0.2)
        raise AssertionError("the broker does not answer")

    def create(self, topic: str, partitions: int) -> None:
        for made in self.admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            made.result(60)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _properties(data: Path, port: int, controller: int) -> str:
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())
