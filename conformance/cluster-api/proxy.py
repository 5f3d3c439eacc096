"""Between Karpenter and the management cluster: passes everything on, can lose the answer to a write that was done, and can hide a version."""

import http.client
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GROUP = "cluster.x-k8s.io"
HOP = {"connection", "host", "accept-encoding", "transfer-encoding", "content-length", "keep-alive"}


NOT_SERVED = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "details": {}, "code": 404,
              "message": "the server could not find the requested resource"}


def without(text, hidden):
    """The groups there are, without these versions of Cluster API's."""
    found = json.loads(text)
    for group in found["groups"]:
        if group["name"] == GROUP:
            group["versions"] = [v for v in group["versions"] if v["version"] not in hidden]
            if group["preferredVersion"]["version"] in hidden:
                group["preferredVersion"] = group["versions"][0]
    return json.dumps(found).encode()


class Proxy:
    """after(method, path): called when a write was done and before it is answered; if it says so, no answer is given.
    hidden: the versions of Cluster API's own kinds that look as if they were not served."""

    def __init__(self, world, name):
        proxy = self
        self.api, self.after, self.hidden = world.hub, None, ()
        self.watches = []
        self.passed = []  # writes to Cluster API's own kinds that were done
        self.lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def pass_on(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.split("?")[0]
                if any(path.startswith(f"/apis/{GROUP}/{version}") for version in proxy.hidden):
                    return self.answer(404, json.dumps(NOT_SERVED).encode())
                server = proxy.api.connect(None)
                try:
                    server.request(self.command, self.path, body or None, {k: v for k, v in self.headers.items() if k.lower() not in HOP})
                    answer = server.getresponse()
                    write = self.command not in ("GET", "HEAD") and answer.status < 400 and "selfsubject" not in self.path
                    text = answer.read() if "watch=" not in self.path else None
                    if write and path.startswith(f"/apis/{GROUP}/"):
                        proxy.passed.append((self.command, path))
                    if write and proxy.is_lost(self.command, path):
                        self.close_connection = True
                        return
                    if proxy.hidden and path == "/apis":
                        text = without(text, proxy.hidden)
                    kind = answer.getheader("Content-Type", "application/json")
                    if text is not None:
                        return self.answer(answer.status, text, kind)
                    if server.sock:
                        proxy.watches.append((path, server.sock))
                    self.send_response(answer.status)
                    self.send_header("Content-Type", kind)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    while piece := answer.read1(65536):
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                        self.wfile.flush()
                    self.wfile.write(b"0\r\n\r\n")
                except (OSError, http.client.HTTPException, ValueError):
                    self.close_connection = True
                finally:
                    server.close()

            def answer(self, status, text, kind="application/json"):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = pass_on

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):  # Karpenter was killed in the middle
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        token = type(world.hub)(f"{world.hub_dir}/karpenter.kubeconfig").token
        entry = lambda kind, value: [{"name": "proxy", kind: value}]
        kubeconfig = {
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": entry("cluster", {"server": f"http://127.0.0.1:{self.server.server_port}"}),
            "users": entry("user", {"token": token}), "contexts": entry("context", {"cluster": "proxy", "user": "proxy"}),
        }
        path = f"{world.arguments.out}/{name}.kubeconfig"
        json.dump(kubeconfig, open(path, "w"))
        self.env = {"CLUSTER_API_KUBECONFIG": path}

    def hide(self, *versions):
        """Hides these versions and no others; watches in them end, as a server ends those of a version that it serves no longer."""
        self.hidden = versions
        for path, stream in self.watches:
            if any(path.startswith(f"/apis/{GROUP}/{version}/") for version in versions):
                try:
                    stream.shutdown(socket.SHUT_RDWR)
                except OSError:  # it has ended
                    pass

    def is_lost(self, method, path):
        with self.lock:
            return bool(self.after and self.after(method, path))

    def stop(self):
        self.after = None
        self.server.shutdown()
        self.server.server_close()
