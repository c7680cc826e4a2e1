"""A chat endpoint in Flask, without asyncio: one client for the app, and a browser that leaves stops the work (needs flask)."""

from collections.abc import Iterator

from flask import Flask, Response, request

import streamco

app = Flask(__name__)
client = streamco.SyncClient(device=streamco.packaged_model())  # its thread starts with the first call, in each worker process


@app.get("/chat")
def chat() -> Response:
    question = request.args["q"]

    def events() -> Iterator[str]:
        with client.stream(question, max_tokens=200) as stream:
            for token in stream:
                yield f"data: {app.json.dumps(token.text)}\n\n"

    return Response(events(), mimetype="text/event-stream")


@app.get("/answer")
def answer() -> dict[str, object]:
    whole = client.chat.completions.create(messages=request.args["q"], max_tokens=20)
    return whole.model_dump(exclude_none=True)


def visit() -> None:  # as a browser would; `flask --app flask_chat run` serves it for real
    browser = app.test_client()
    print(browser.get("/chat?q=Why").text.splitlines()[0])
    print(browser.get("/answer?q=Why").get_json()["choices"][0]["finish_reason"])


if __name__ == "__main__":
    visit()
    client.close()
