"""For tests: a loopback server that speaks the OpenAI protocol and answers from a script.

    async with ScriptedServer([call("read_file", {"path": "a.txt"}), text("It says hello.")]) as server:
        orchestrator = Orchestrator(model="scripted", base_url=server.base_url, api_key="none")
        result = await orchestrator.solve("What does a.txt say?")
    assert len(server.requests) == 2

Each request is checked by the rules that real providers apply, so a test also shows that what was sent would have been
accepted.
"""

from orchestrator.testing.answers import Answer, Options, call, cut, drop, empty, fault, hang, html, text
from orchestrator.testing.linter import Profile, lint
from orchestrator.testing.server import Replies, ScriptedServer, route

__all__ = [
    "Answer",
    "Options",
    "Profile",
    "Replies",
    "ScriptedServer",
    "call",
    "cut",
    "drop",
    "empty",
    "fault",
    "hang",
    "html",
    "lint",
    "route",
    "text",
]
