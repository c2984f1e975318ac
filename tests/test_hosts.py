"""The hosts of the tests: apart from each other and from this machine, and gone afterwards."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hosts import network

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


def answers(host, other, port=7000):
    """Whether a TCP connection from one host to another is accepted."""
    code = f"import socket; socket.create_connection(('{other.address}', {port}), 1)"
    return host.run([sys.executable, "-c", code]).returncode == 0


SERVER = "import socket, time; s = socket.create_server(('', 7000)); time.sleep(60)"


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def interfaces():
    return sorted(os.listdir("/sys/class/net"))


def running(marker):
    """Processes of this machine whose command line holds a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker in path.read_bytes().decode(errors="replace"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_hosts_reach_each_other_until_one_is_cut_off(tmp_path):
    before = interfaces()
    with network() as net:
        one, two = net.host(), net.host()
        assert interfaces() == before
        two.start([sys.executable, "-c", SERVER], log=tmp_path / "log")
        wait_until(lambda: answers(one, two))
        two.cut_off()
        assert not answers(one, two)
        two.reconnect()
        wait_until(lambda: answers(one, two))
        assert [host.run(["hostname"]).stdout.strip() for host in (one, two)] == ["host1", "host2"]
    assert interfaces() == before


def test_hosts_share_only_the_named_folders(tmp_path):
    lake, secret = tmp_path / "lake", tmp_path / "secret"
    lake.mkdir()
    secret.write_text("of this machine")
    with network() as net:
        one, two = net.host(shared=[lake]), net.host(shared=[lake])
        assert one.run(["sh", "-c", f"echo hello > {lake}/a; echo mine > /tmp/b"]).returncode == 0
        assert two.run(["cat", f"{lake}/a"]).stdout == "hello\n"
        assert two.run(["ls", "/tmp/b"]).returncode != 0
        assert one.run(["ls", str(secret)]).returncode != 0
    assert (lake / "a").read_text() == "hello\n"
    assert not Path("/tmp/b").exists()


def test_a_host_takes_its_processes_with_it(tmp_path):
    marker = f"sleep 61.{os.getpid()}"
    with network() as net:
        host = net.host()
        process = host.start(["sh", "-c", f"{marker} & {marker}"], log=tmp_path / "log")
        wait_until(lambda: len(running(marker.split()[1])) >= 3)
    assert running(marker.split()[1]) == []
    process.wait(timeout=5)


def test_kill_ends_a_command_and_its_children(tmp_path):
    with network() as net:
        host = net.host()
        process = host.start(["sh", "-c", "sleep 62 & sleep 62"], log=tmp_path / "log")
        wait_until(lambda: host.run(["pgrep", "-c", "sleep"]).stdout.strip() == "2")
        host.kill(process)
        process.wait(timeout=5)
        wait_until(lambda: host.run(["pgrep", "-c", "sleep"]).stdout.strip() == "0")


def test_nothing_is_left_when_the_tests_are_killed(tmp_path):
    marker = f"63.{os.getpid()}"
    log = tmp_path / "log"
    code = (
        "import pathlib, signal, sys\n"
        "from tests.hosts import network\n"
        "with network() as net:\n"
        f"    net.host().start(['sleep', '{marker}'], log=pathlib.Path('{log}'))\n"
        "    print('up', flush=True)\n"
        "    signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        assert tests.stdout.readline() == "up\n"
        wait_until(lambda: running(marker))
        os.kill(tests.pid, signal.SIGKILL)
    wait_until(lambda: running(marker) == [])
