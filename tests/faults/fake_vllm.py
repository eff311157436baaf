"""A program that serves as vLLM does, as far as hwtune's launcher sees it: ``fake_vllm.py PORT``.

``GET /do/<what>`` makes it misbehave: ``hang`` (completions never end), ``mute`` (nothing is
answered any more), ``talk/<bytes>`` (prints so much), ``kill-engine``, ``exit`` and ``fall`` (the one,
and at once the other). Its engine forks all the time, and what it forks bears its name.
"""

from __future__ import annotations

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading

PORT = int(sys.argv[1])
HANG = threading.Event()
MUTE = threading.Event()
COUNTS = {"requests": 0, "running": 0}
FORKING = """
import os, time
while True:
    child = os.fork()
    if not child:
        time.sleep(0.7)
        os._exit(0)
    os.waitpid(child, 0)
"""
ENGINE = subprocess.Popen(["VLLM::EngineCore", "-c", FORKING], executable=sys.executable)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if MUTE.is_set():
            threading.Event().wait()
        if self.path.startswith("/do/"):
            misbehave(self.path.removeprefix("/do/"))
        answer = (
            f"vllm:prompt_tokens_total {COUNTS['requests']}\n" if "metrics" in self.path else ""
        )
        self.answer(answer)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if HANG.is_set():
            threading.Event().wait()
        COUNTS["requests"] += 1
        self.answer("{}")

    def answer(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: object) -> None:
        pass


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def misbehave(what: str) -> None:
    if what == "hang":
        HANG.set()
    elif what == "mute":
        MUTE.set()
    elif what.startswith("talk/"):
        for number in range(int(what.removeprefix("talk/")) // 1000):
            say(f"{number:999}")
    elif what == "kill-engine":
        ENGINE.kill()
        ENGINE.wait()
    elif what == "exit":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "fall":
        misbehave("kill-engine")
        threading.Timer(0.1, misbehave, ["exit"]).start()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away is no failure of the server

    def server_bind(self) -> None:
        self.socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEPORT, 1
        )  # as vLLM's API servers do
        super().server_bind()


if "--bind-late" in sys.argv:
    threading.Event().wait(2)
say(
    "(Worker pid=9) INFO 11-30 06:51:47 [runtime.py:40] hwtune[n] registered backend=CPU_ATTN "
    "class=X alignment=64 kernels=-"
)
say("(APIServer pid=1) INFO:     Application startup complete.")
Server(("127.0.0.1", PORT), Handler).serve_forever()
