"""A small CloudStack client of its own, so that what Karpenter did is checked by somebody else. Only the standard library."""

import base64
import hashlib
import hmac
import json
import time
import urllib.error
import urllib.parse
import urllib.request


class Refused(Exception):
    def __init__(self, command, code, text):
        super().__init__(f"{command}: {code} {text}")
        self.code, self.text = code, text


class Cloud:
    """One user of a CloudStack server."""

    def __init__(self, endpoint, key, secret):
        self.endpoint, self.key, self.secret = endpoint, key, secret

    def call(self, command, **parameters):
        fields = {"command": command, "response": "json", "apikey": self.key, **{k: str(v) for k, v in parameters.items()}}
        encode = lambda value: urllib.parse.quote(value, safe="*").replace("~", "%7E")
        text = "&".join(f"{name}={encode(fields[name])}" for name in sorted(fields)).lower()
        digest = hmac.new(self.secret.encode(), text.encode(), hashlib.sha1).digest()
        fields["signature"] = base64.b64encode(digest).decode()
        body = urllib.parse.urlencode(fields).encode()
        try:
            with urllib.request.urlopen(self.endpoint, body, timeout=300) as answer:
                value = json.load(answer)
        except urllib.error.HTTPError as error:
            told = error.read().decode(errors="replace")
            try:
                told = next(iter(json.loads(told).values()))["errortext"]
            except (ValueError, KeyError, TypeError):
                pass
            raise Refused(command, error.code, told) from None
        return next(iter(value.values()))

    def job(self, command, **parameters):
        """Calls and waits for what comes of it."""
        answer = self.call(command, **parameters)
        while True:
            job = self.call("queryAsyncJobResult", jobid=answer["jobid"])
            if job["jobstatus"] == 1:
                return job["jobresult"]
            if job["jobstatus"] != 0:
                result = job.get("jobresult", {})
                raise Refused(command, result.get("errorcode", 530), result.get("errortext", "no result"))
            time.sleep(0.5)

    def list(self, command, what, **parameters):
        found, page = [], 1
        while True:
            answer = self.call(command, page=page, pagesize=500, **parameters)
            found += answer.get(what, [])
            if len(found) >= answer.get("count", 0) or not answer.get(what):
                return found
            page += 1

    def machines(self, **parameters):
        return self.list("listVirtualMachines", "virtualmachine", **parameters)
