"""Agent programs that tests name by path or run as commands: `python agent_programs.py NAME`."""

import json
import os
import sys
import threading
import time
from contextlib import suppress

import httpx

TURNSTILE = threading.Event()
"""Opened by one episode for another that waits."""


CLIENT = httpx.Client(trust_env=False, verify=False, timeout=60)
"""Without certificates, whose loading takes longer than everything else here."""


def post(base_url, api_key, **body):
    headers = {"authorization": f"Bearer {api_key}"}
    return CLIENT.post(f"{base_url}/chat/completions", json=body, headers=headers)


def said(reply):
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]


def history(task):
    return [{"role": m.role, "content": m.content} for m in task.messages]


def once(task, *, base_url, api_key, **more):
    """One question, one answer."""
    return said(post(base_url, api_key, messages=history(task), **more))["content"]


def chat(task, *, base_url, api_key, turns=3, tell="go on"):
    """A conversation of several turns."""
    messages = history(task)
    for _ in range(turns):
        reply = said(post(base_url, api_key, messages=messages))
        messages += [reply, {"role": "user", "content": tell}]
    return {"answer": reply["content"], "rewards": {"won": 1.0}, "turns": turns}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "double",
            "description": "Double a number.",
            "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}},
        },
    }
]


async def tools(task, *, base_url, api_key, result="8"):
    """Calls tools until the model answers; async."""
    messages = history(task)
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=60) as client:
        while True:
            reply = await client.post(
                f"{base_url}/chat/completions",
                json={"messages": messages, "tools": TOOLS},
                headers={"authorization": f"Bearer {api_key}"},
            )
            message = said(reply)
            if not message.get("tool_calls"):
                return message["content"]
            messages.append(message)
            for call in message["tool_calls"]:
                assert json.loads(call["function"]["arguments"]) == {"number": 4}
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def branches(task, *, base_url, api_key):
    """The same question twice, then one of the two conversations, then another opening."""
    messages = history(task)
    first = said(post(base_url, api_key, messages=messages))
    second = said(post(base_url, api_key, messages=messages))
    go_on = {"role": "user", "content": "and?"}
    said(post(base_url, api_key, messages=[*messages, first, go_on]))
    said(post(base_url, api_key, messages=[*messages, first, go_on]))
    said(post(base_url, api_key, messages=[{"role": "user", "content": "else"}]))
    return f"{first['content']} {second['content']}"


def choices(task, *, base_url, api_key, n=3):
    reply = post(base_url, api_key, messages=history(task), n=n, logprobs=True)
    assert reply.status_code == 200, reply.text
    found = reply.json()
    assert all(len(c["logprobs"]["content"]) for c in found["choices"])
    return " ".join(c["message"]["content"] for c in found["choices"])


def waits(task, *, base_url, api_key, seed=0):
    """The first episode to come waits until another one has ended."""
    text = once(task, base_url=base_url, api_key=api_key)
    if TURNSTILE.is_set():
        return text
    if "first" in text:
        assert TURNSTILE.wait(30)
    else:
        TURNSTILE.set()
    return text


def impatient(task, *, base_url, api_key):
    """Hangs up before the reply comes, and asks again: in the middle of a conversation."""
    messages = history(task)
    messages += [said(post(base_url, api_key, messages=messages))]
    messages += [{"role": "user", "content": "and?"}]
    try:
        CLIENT.post(
            f"{base_url}/chat/completions",
            json={"messages": messages},
            headers={"authorization": f"Bearer {api_key}"},
            timeout=0.5,
        )
    except httpx.ReadTimeout:
        return said(post(base_url, api_key, messages=messages))["content"]
    raise AssertionError("nobody waited")


def raises(task, *, base_url, api_key):
    raise LookupError(f"nothing at {base_url} with {api_key}")


def raises_late(task, *, base_url, api_key):
    said(post(base_url, api_key, messages=[{"role": "user", "content": task.prompt}]))
    raise LookupError(f"nothing with {api_key}")


def silent(task, *, base_url, api_key):
    return "I know it myself"


def leaves(task, *, base_url, api_key):
    """Ends while a request of its own is under way."""

    def asks():
        with suppress(httpx.HTTPError):
            post(base_url, api_key, messages=history(task))

    threading.Thread(target=asks, daemon=True).start()
    TURNSTILE.wait(30)
    return "gone"


def endless(task, *, base_url, api_key):
    """Asks and asks, whatever it is told."""
    while post(base_url, api_key, messages=history(task)).status_code != 401:
        pass


def nonsense(task, *, base_url, api_key):
    """Bodies that are no requests; then a good one."""
    headers = {"authorization": f"Bearer {api_key}", "content-type": "application/json"}
    url = f"{base_url}/chat/completions"
    bodies = [
        b"", b"[]", b"{", b'{"messages": []}', b'{"messages": 3}', b"[" * 100_000, b"\xff\xfe",
        b'{"messages": [{"role": "wizard", "content": "x"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
        b'{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": '
        b'[{"function": {"name": "f", "arguments": "{\\"a\\": \\"\\\\ud800\\"}"}}]}, '
        b'{"role": "tool", "content": "y"}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "n": 0}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": -1}',
        b'{"messages": [{"role": "user", "content": "x"}], "stop": [""]}',
        b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "magic"}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json"}}',
    ]  # fmt: skip
    for body in bodies:
        reply = CLIENT.post(url, content=body, headers=headers)
        assert reply.status_code == 400, (body[:40], reply.text)
        assert reply.json()["error"]["message"]
    plain = {**headers, "content-type": "text/plain"}
    assert CLIENT.post(url, content=b"{}", headers=plain).status_code == 415
    assert post(base_url, api_key + "x", messages=history(task)).status_code == 401
    assert CLIENT.get(f"{base_url}/else", headers=headers).status_code == 404
    other = {**headers, "host": "evil.example"}
    assert CLIENT.post(url, content=b"{}", headers=other).status_code == 403
    models = CLIENT.get(f"{base_url}/models", headers=headers).json()
    assert [one["id"] for one in models["data"]] == ["speaker"]
    return once(task, base_url=base_url, api_key=api_key)


def with_openai(task, *, base_url, api_key, stream=False):
    """The openai package, with a tool."""
    from openai import OpenAI

    client = OpenAI(base_url=base_url, api_key=api_key)
    messages = history(task)
    while True:
        asked = {"model": "any", "messages": messages, "tools": TOOLS}
        if stream:
            with client.chat.completions.stream(**asked) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**asked).choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "8"})


def with_smolagents(task, *, base_url, api_key):
    """A real agent from a package: smolagents' CodeAgent, which runs the code that a model writes."""
    from smolagents import CodeAgent, OpenAIServerModel

    model = OpenAIServerModel("any", api_base=base_url, api_key=api_key)
    agent = CodeAgent(tools=[], model=model, max_steps=3, verbosity_level=0)
    return str(agent.run(task.prompt))


# --- programs


def say(line):
    sys.stdout.write(f"{line}\n")


def program(name):
    base_url, api_key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    task = json.load(sys.stdin)
    messages = task["messages"]
    if name == "ask":
        say("thinking ...")
        say(said(post(base_url, api_key, messages=messages))["content"])
    elif name == "json":
        text = said(post(base_url, api_key, messages=messages))["content"]
        fields = sorted(task["fields"])
        say(json.dumps({"answer": text.upper(), "rewards": {"won": 0.5}, "fields": fields}))
    elif name == "crash":
        said(post(base_url, api_key, messages=messages))
        raise ValueError(f"the key was {api_key}")
    elif name == "hang":
        said(post(base_url, api_key, messages=messages))
        time.sleep(600)
    elif name == "flood":
        said(post(base_url, api_key, messages=messages))
        while True:
            say("x" * 10_000)
    elif name == "limit":
        for _ in range(50):
            said(post(base_url, api_key, messages=messages))
    elif name == "nothing":
        say("42")
    elif name == "early":
        raise ValueError("no such tool:\n  a second line")
    elif name in ("child", "stray"):
        import subprocess

        said(post(base_url, api_key, messages=messages))
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"],
            start_new_session=name == "stray",
        )
        say(child.pid)


if __name__ == "__main__":
    program(sys.argv[1])
