"""Uses a service by OpenAI's package: what it answered, as JSON."""

from __future__ import annotations

import json
import os

import openai

MODEL = os.environ["MODEL"]
ASK = [{"role": "user", "content": "What is the capital of France?"}]

client = openai.OpenAI(max_retries=0)
wish = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 16}
whole = client.chat.completions.create(**wish, logprobs=True, top_logprobs=2, n=2)
with client.chat.completions.stream(**wish) as stream:
    streamed = "".join(event.delta for event in stream if event.type == "content.delta")
text = client.completions.create(
    model=MODEL,
    prompt=["The capital of France is", "The capital of Italy is"],
    temperature=0,
    max_tokens=1,
    logprobs=1,
    echo=True,
)
vectors = client.embeddings.create(model="all-MiniLM-L6-v2", input=["a cat", "a kitten", "a tax"])
first, other, far = (each.embedding for each in vectors.data)
try:
    openai.OpenAI(api_key="wrong", max_retries=0).models.list()
    refused = ""
except openai.AuthenticationError as error:
    refused = error.code
print(
    json.dumps(
        {
            "models": [each.id for each in client.models.list()],
            "texts": [choice.message.content for choice in whole.choices],
            "tokens": [entry.token for entry in whole.choices[0].logprobs.content],
            "streamed": streamed,
            "echoed": [choice.text for choice in text.choices],
            "scored": [len(choice.logprobs.token_logprobs) for choice in text.choices],
            "near": sum(a * b for a, b in zip(first, other, strict=True)),
            "far": sum(a * b for a, b in zip(first, far, strict=True)),
            "refused": refused,
        }
    )
)
