"""The road between Karpenter and CloudStack: passes everything on, counts it, and can lose what is told to."""

import http.client
import json
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Road:
    """before(command, fields): says "lose" to swallow a request. after(command, fields, code): says "lose" to swallow an answer that was
    given, or answers itself with (code, type, text)."""

    def __init__(self, endpoint, port=0):
        road = self
        self.before = self.after = None
        self.calls = []  # when, command, code, seconds, fields
        self.lock = threading.Lock()
        to = urllib.parse.urlsplit(endpoint)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def pass_on(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                query = urllib.parse.urlsplit(self.path).query
                fields = dict(urllib.parse.parse_qsl(query + "&" + body.decode(errors="replace"), keep_blank_values=True))
                command, began = fields.get("command", "?"), time.time()
                fields = {k: v for k, v in fields.items() if k.lower() not in ("apikey", "signature", "command", "response")}
                with road.lock:
                    lost = road.before and road.before(command, fields)
                if lost:
                    road.note(began, command, "lost", fields)
                    self.close_connection = True
                    return
                server = http.client.HTTPConnection(to.hostname, to.port, timeout=600)
                try:
                    headers = {k: v for k, v in self.headers.items() if k.lower() in ("content-type", "accept", "user-agent")}
                    server.request(self.command, to.path + ("?" + query if query else ""), body or None, headers)
                    answer = server.getresponse()
                    code, kind, text = answer.status, answer.getheader("Content-Type", "application/json"), answer.read()
                    with road.lock:
                        said = road.after and road.after(command, fields, code)
                    road.note(began, command, code if said != "lose" else f"{code} lost", fields, text)
                    if said == "lose":
                        self.close_connection = True
                        return
                    if said:
                        code, kind, text = said
                    self.send_response(code)
                    self.send_header("Content-Type", kind)
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)
                except (OSError, http.client.HTTPException) as error:
                    road.note(began, command, type(error).__name__, fields)
                    self.close_connection = True
                finally:
                    server.close()

            do_GET = do_POST = pass_on

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_):  # Karpenter was killed in the middle
                pass

        self.server = Server(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}{to.path}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def note(self, began, command, code, fields, text=b""):
        told = ""
        if code != 200:
            try:
                told = next(iter(json.loads(text).values()))["errortext"]
            except (ValueError, KeyError, TypeError, StopIteration):
                told = text[:200].decode(errors="replace")
        self.calls.append((began, command, code, time.time() - began, fields, told))
