"""Uses a service by langchain-openai: what it answered, as JSON."""

from __future__ import annotations

import json
import os

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

MODEL = os.environ["MODEL"]
QUESTION = "What is the capital of {country}?"

model = ChatOpenAI(model=MODEL, temperature=0, max_completion_tokens=16, max_retries=0)
chain = ChatPromptTemplate.from_messages([("user", QUESTION)]) | model
answers = chain.batch([{"country": "France"}, {"country": "Italy"}])
told = (chain.first | model.bind(logprobs=True, top_logprobs=2)).invoke({"country": "France"})
streamed = list(chain.stream({"country": "France"}))
text = OpenAI(model=MODEL, temperature=0, max_tokens=4, max_retries=0, n=1)
several = OpenAI(model=MODEL, temperature=1, seed=3, max_tokens=8, n=3, best_of=1, max_retries=0)
# Its own tokens would be of another model.
vectors = OpenAIEmbeddings(
    model="all-MiniLM-L6-v2", check_embedding_ctx_length=False, max_retries=0
).embed_documents(["a cat", "a kitten"])
print(
    json.dumps(
        {
            "answers": [answer.content for answer in answers],
            "usage": answers[0].usage_metadata["total_tokens"],
            "tokens": [each["token"] for each in told.response_metadata["logprobs"]["content"]],
            "streamed": "".join(chunk.content for chunk in streamed),
            "pieces": len(streamed),
            "texts": text.batch(["The capital of France is", "The capital of Italy is"]),
            "choices": [each.text for each in several.generate(["Once upon"]).generations[0]],
            "near": sum(a * b for a, b in zip(*vectors, strict=True)),
        }
    )
)
