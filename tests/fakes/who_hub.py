"""A hub on loopback that knows whose a token is: the token is the name."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ACCESS = "access:services!service=gpulab"
ADMINS = ("root",)
STRANGERS = ("stranger",)


class WhoHub:
    """Answers /hub/api/user: `ada`, `li` and `root` (an admin) may use the service, `stranger` may not."""

    def __init__(self):
        self.down = False
        self.names = {"ada", "li", "root", "stranger"}
        self.revoked = set()
        self.admins = set(ADMINS)
        self.asked = 0
        self.scopes = {}
        """Scopes of further tokens, which may do what these say and no more."""
        hub = self

        def known(name):
            return name in (hub.names | hub.scopes.keys()) - hub.revoked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                hub.asked += 1
                name = self.headers.get("Authorization", "").removeprefix("token ")
                status = 500 if hub.down else 200 if known(name) else 403
                scopes = hub.scopes.get(name, [] if name in STRANGERS else [ACCESS])
                model = {
                    "kind": "user",
                    "name": name,
                    "admin": name in hub.admins,
                    "groups": [],
                    "scopes": scopes,
                }
                body = json.dumps(model).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.api = f"http://127.0.0.1:{self._server.server_address[1]}/hub/api"

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
