"""A program of two turns that needs nothing but Python; with a marker file it kills its trainer."""

import json
import os
import signal
import sys
import urllib.request


def ask(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"messages": messages}).encode(),
        {"content-type": "application/json",
         "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)["choices"][0]["message"]


def main():
    messages = json.load(sys.stdin)["messages"]
    messages += [ask(messages), {"role": "user", "content": "again?"}]
    if len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
        os.unlink(sys.argv[1])
        os.kill(os.getppid(), signal.SIGKILL)
    answer = ask(messages)["content"]
    sys.stdout.buffer.write(" ".join(answer.split()).encode() + b"\n")


main()
