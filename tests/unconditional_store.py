"""Passes requests on to an object store without their `If-None-Match`: a store that does not know it. To be run as
``python -m tests.unconditional_store PORT STORE``, in a process of its own like the store itself."""

from __future__ import annotations

import sys
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_KEPT_BACK = ("connection", "host", "if-none-match")
_OWN = ("connection", "content-length", "transfer-encoding")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: str

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _KEPT_BACK}
        connection = HTTPConnection(self.store)
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OWN:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        connection.close()

    do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = pass_on  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    _, port, _Handler.store = sys.argv
    ThreadingHTTPServer(("127.0.0.1", int(port)), _Handler).serve_forever()
