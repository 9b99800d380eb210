"""Uses a service by litellm: what it answered, as JSON."""

from __future__ import annotations

import json
import os

import litellm

MODEL = os.environ["MODEL"]
ASK = [{"role": "user", "content": "What is the capital of France?"}]
WHERE = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}

wish = {"model": f"openai/{MODEL}", "messages": ASK, "temperature": 0, "max_tokens": 16, **WHERE}
whole = litellm.completion(**wish, logprobs=True, top_logprobs=2, n=2, presence_penalty=0.1)
hosted = litellm.completion(
    **{**wish, "model": f"hosted_vllm/{MODEL}"}, top_k=1, extra_body={"min_tokens": 2}
)
streamed = [
    chunk.choices[0].delta.content or "" for chunk in litellm.completion(**wish, stream=True)
]
text = litellm.text_completion(
    model=f"text-completion-openai/{MODEL}",
    prompt="The capital of France is",
    temperature=0,
    max_tokens=4,
    logprobs=1,
    **WHERE,
)
vectors = litellm.embedding(
    model="openai/all-MiniLM-L6-v2", input=["a cat", "a kitten"], encoding_format="float", **WHERE
)
first, other = (each["embedding"] for each in vectors.data)
print(
    json.dumps(
        {
            "texts": [choice.message.content for choice in whole.choices],
            "tokens": [entry["token"] for entry in whole.choices[0].logprobs["content"]],
            "hosted": hosted.choices[0].message.content,
            "streamed": "".join(streamed),
            "text": text.choices[0].text,
            "scored": len(text.choices[0].logprobs.token_logprobs),
            "near": sum(a * b for a, b in zip(first, other, strict=True)),
        }
    )
)
