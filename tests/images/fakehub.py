"""A hub on loopback that answers about tokens, with failures that have names."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SCOPE = "access:servers!server=ada/"
ADA = {"kind": "user", "name": "ada", "admin": False, "groups": [], "scopes": [SCOPE]}


class FakeHub:
    """Answers `/hub/api/user` as its `mood` says, and the token endpoint of OAuth always.

    Moods: `yes`, `no` (403), `broken` (500), `busy` (429), `lost` (404), `junk` (200, no JSON), `hang` (no
    answer until the hub is closed). `close` makes it refuse connections.
    """

    def __init__(self) -> None:
        self.mood = "yes"
        self.asked = 0
        self.tokens: list[str] = []
        self.queries: list[str] = []
        self.released = threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/hub/api/user":
                    hub._answer(self)
                else:
                    hub._send(self, 200, {"version": "6.1.1"})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                hub.queries.append(body)
                hub._send(self, 200, {"access_token": "from-oauth"})

            def log_message(self, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.api = f"http://127.0.0.1:{self._server.server_address[1]}/hub/api"

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked += 1
        self.tokens.append(handler.headers["Authorization"])
        if self.mood == "hang":
            self.released.wait()
            return
        if self.mood == "junk":
            self._send(handler, 200, "not JSON")
            return
        status = {"yes": 200, "no": 403, "broken": 500, "busy": 429, "lost": 404}[self.mood]
        known = "stranger" not in handler.headers["Authorization"]
        self._send(handler, status if known or status != 200 else 403, ADA if status == 200 and known else {})

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, status: int, content: object) -> None:
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("Content-Type", "application/json")
        handler.send_header("X-JupyterHub-Version", "6.1.1")
        handler.end_headers()
        handler.wfile.write(body)

    def close(self) -> None:
        """Refuse every further connection."""
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
