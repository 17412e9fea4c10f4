"""The part of the hub's REST API that the commands use, with the answer that a test names."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@contextmanager
def fake_hub(status=204, message="", pages=()):
    """Run a hub that answers a DELETE with a status, a GET with the next page, and notes paths and tokens."""

    class Handler(BaseHTTPRequestHandler):
        def do_DELETE(self):
            hub.deleted.append(self.path)
            hub.tokens.add(self.headers["Authorization"])
            body = b"" if status == 204 else json.dumps({"status": status, "message": message}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            hub.tokens.add(self.headers["Authorization"])
            body = json.dumps(pages[len(hub.asked)]).encode()
            hub.asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    hub = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.port, hub.deleted, hub.asked, hub.tokens = hub.server_address[1], [], [], set()
    thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
