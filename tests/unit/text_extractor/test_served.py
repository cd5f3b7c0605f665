"""Answers of a served model, over a real HTTP server on this machine."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.text_extractor.choice import open_extractor
from services.text_extractor.phrases import words_of
from services.text_extractor.served import Served, find_phrase, read_answer
from shared.domain.errors import UnavailableError
from shared.runtime.settings import Settings
from tests.unit.text_extractor.pieces import whole_words

PROMPT = "A red Fox  runs in the snow, 4k"


class Server:
    """A server with OpenAI's API; `answer` returns the content for a prompt."""

    def __init__(self) -> None:
        self.answer: Callable[[str], str] = lambda prompt: "Object: a red fox runs\nBackground: in the snow"
        self.finish, self.status = "stop", 200
        self.refuse = self.fail = ""
        self.models: object = {"data": [{"id": "the-model"}]}
        self.bodies: list[dict[str, object]] = []
        self.keys: list[str | None] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(server.models)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.bodies.append(body)
                server.keys.append(self.headers.get("authorization"))
                prompt = body["messages"][-1]["content"]
                if server.refuse and server.refuse in prompt:
                    self._send({"error": "content filter"}, 400)
                    return
                if server.fail and server.fail in prompt:
                    self._send({"error": "out of memory"}, 500)
                    return
                content = server.answer(prompt)
                self._send({"choices": [{"message": {"content": content}, "finish_reason": server.finish}]})

            def _send(self, reply: object, status: int = 0) -> None:
                data = json.dumps(reply).encode()
                self.send_response(status or server.status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    thread = threading.Thread(target=one.http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield one
    one.http.shutdown()
    one.http.server_close()
    thread.join()


def test_an_answer_becomes_spans(server: Server) -> None:
    extractor = open_extractor(Settings(extractor=server.url, extractor_key="secret", extract_tokens=64))
    first, second = extractor.extract([PROMPT, PROMPT])
    assert first == second
    parts = first.parts(PROMPT)
    assert (parts.object, parts.background, first.sure) == ("A red Fox  runs", "in the snow", True)
    assert extractor.id == "served:the-model"
    assert server.bodies[0]["max_tokens"] == 64
    assert server.keys[0] == "Bearer secret"


def test_the_fragment_names_the_model(server: Server) -> None:
    Served(f"{server.url}#mine", "", 77).extract([PROMPT])
    assert server.bodies[0]["model"] == "mine"
    assert server.keys == [None]


@pytest.mark.parametrize(
    "answer",
    ["Object: a blue fox\nBackground: in the snow", "", "Object: a red fox", "none",
     "Object: none\nBackground: in the snow",
     "Object: a red fox runs in the snow\nBackground: in the snow"],
)  # fmt: skip
def test_what_the_prompt_does_not_say_is_unsure(server: Server, answer: str) -> None:
    server.answer = lambda prompt: answer
    assert not Served(f"{server.url}#m", "", 77).extract([PROMPT])[0].sure


def test_a_cut_answer_is_unsure(server: Server) -> None:
    server.finish = "length"
    assert not Served(f"{server.url}#m", "", 77).extract([PROMPT])[0].sure


def test_a_server_that_fails_or_is_away_is_unavailable(server: Server) -> None:
    server.status = 500
    with pytest.raises(UnavailableError, match="500"):
        Served(f"{server.url}#m", "", 77).extract([PROMPT])
    with pytest.raises(UnavailableError, match="/models"):
        Served("http://127.0.0.1:9/v1", "", 77).extract([PROMPT])


@pytest.mark.parametrize("status", [401, 404, 429, 500])
def test_a_failure_names_neither_the_server_nor_its_credentials(server: Server, status: int) -> None:
    server.status = status
    url = server.url.replace("http://", "http://user:pass@")
    with pytest.raises(UnavailableError, match=str(status)) as raised:
        Served(f"{url}#m", "", 77).extract([PROMPT])
    assert raised.value.outside == "the extractor's server failed"
    assert "127.0.0.1" not in str(raised.value)


def test_a_refused_prompt_costs_its_own_parts_alone(server: Server) -> None:
    server.refuse = "fight"
    refused, answered = Served(f"{server.url}#m", "", 77).extract(["a fight", PROMPT])
    assert (refused.sure, answered.sure) == (False, True)


@pytest.mark.parametrize("models", [[], {"data": []}, {"data": None}, "none"])
def test_a_list_of_models_in_another_shape_is_unavailable(server: Server, models: object) -> None:
    server.models = models
    with pytest.raises(UnavailableError, match="/models"):
        Served(server.url, "", 77).extract([PROMPT])


def test_a_long_prompt_is_sent_as_far_as_it_is_read(server: Server) -> None:
    Served(f"{server.url}#m", "", 8).extract(["word " * 2000])
    messages = server.bodies[0]["messages"]
    assert isinstance(messages, list)
    assert messages[-1]["content"] == " ".join(["word"] * 8)


@given(st.text(max_size=200), st.text(max_size=200))
@example("a red fox runs", "red fox")
@example("a red foxglove", "red fox")
def test_any_answer_gives_pieces_of_the_prompt(prompt: str, answer: str) -> None:
    read_answer(prompt, answer)
    span = find_phrase(prompt, answer)
    assert span is None or 0 <= span[0] < span[1] <= len(prompt)
    found = read_answer(prompt, f"Object: {prompt}\nBackground: {answer}")
    assert whole_words(prompt, found)
    if span is not None:
        piece, wanted = (words_of(text, len(text)) for text in (prompt[slice(*span)], answer))
        assert [word.text for word in piece] == [word.text for word in wanted]


def test_a_prompt_on_which_the_server_fails_costs_its_own_parts_alone_and_is_asked_again(server: Server) -> None:
    server.fail = "fight"
    served = Served(f"{server.url}#m", "", 77)
    failed, answered = served.extract(["a fight", PROMPT])
    assert (failed.sure, failed.lasting, answered.sure, answered.lasting) == (False, False, True, True)
    with pytest.raises(UnavailableError, match="500"):
        served.extract(["a fight"])
