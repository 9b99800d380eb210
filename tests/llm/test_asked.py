"""What a request asks for: the fields that would change an answer are served or refused by name."""

from __future__ import annotations

import json

import pytest

from llm.asked import Refused, read

ASK = [{"role": "user", "content": "Hi"}]


def asked(chat=True, **fields):
    body = {"messages": ASK} if chat else {"prompt": "Hi"}
    return read(json.dumps({**body, **fields}).encode(), chat=chat)


WANTED = {
    "add_generation_prompt": [False],
    "add_special_tokens": [True],
    "allowed_token_ids": [[1]],
    "audio": [{"voice": "alloy"}],
    "bad_words": [["x"]],
    "best_of": [2, True],
    "chat_template": ["{{ messages }}"],
    "chat_template_kwargs": [{"enable_thinking": True}],
    "continue_final_message": [True],
    "do_sample": [False],
    "dry_multiplier": [0.8],
    "dynatemp_range": [0.5],
    "echo": [True],
    "enable_thinking": [True],
    "frequency_penalty": [0.5, -1],
    "functions": [[{"name": "f"}]],
    "grammar": ["root ::= x"],
    "guided_choice": [["a", "b"]],
    "guided_grammar": ["x"],
    "guided_json": [{"type": "object"}, '{"type": "object"}'],
    "guided_regex": ["[0-9]"],
    "ignore_eos": [True, 1],
    "include_stop_str_in_output": [True],
    "json_schema": [{"type": "object"}],
    "length_penalty": [2.0],
    "logit_bias": [{"5": -100}, [[5, -100]]],
    "logprobs": [True, 5, 0],
    "max_new_tokens": [5],
    "min_p": [0.1],
    "min_tokens": [1],
    "mirostat": [2],
    "modalities": [["text", "audio"]],
    "n": [2],
    "n_predict": [5],
    "n_probs": [3],
    "no_repeat_ngram_size": [3],
    "num_beams": [4],
    "parameters": [{"max_new_tokens": 5}],
    "presence_penalty": [0.5],
    "prompt": ["Hi"],
    "prompt_logprobs": [0, 1],
    "reasoning_effort": ["high"],
    "repeat_penalty": [1.1],
    "repetition_penalty": [1.2, 0],
    "response_format": [{"type": "json_object"}],
    "return_full_text": [True],
    "samplers": [["top_k"]],
    "skip_special_tokens": [False],
    "stop_token_ids": [[5]],
    "structured_outputs": [{"json": {}}],
    "suffix": ["x"],
    "tfs_z": [0.9],
    "tool_choice": ["required", {"type": "function"}],
    "tools": [[{"type": "function"}]],
    "top_a": [0.1],
    "top_k": [40, 1],
    "top_logprobs": [5],
    "truncate_prompt_tokens": [5],
    "typical_p": [0.9],
    "use_beam_search": [True],
    "watermark": [True],
    "xtc_probability": [0.5],
}


@pytest.mark.parametrize("name", WANTED)
def test_a_field_that_would_change_the_answer_is_refused_by_name(name):
    """By the names of OpenAI and of the servers that speak its API."""
    for value in WANTED[name]:
        with pytest.raises(Refused, match=f"{name} is not served here") as raised:
            asked(**{name: value})
        assert (raised.value.status, raised.value.param) == (400, name)
        assert raised.value.code == "unsupported_parameter"


def test_what_changes_nothing_may_be_said():
    """Null, and the value with which a field does nothing; names that nobody knows are let be."""
    neutral = {
        "add_special_tokens": False,
        "bad_words": [],
        "best_of": 1,
        "echo": False,
        "frequency_penalty": -0.0,
        "guided_json": {},
        "ignore_eos": False,
        "logit_bias": {},
        "logprobs": False,
        "min_p": 0,
        "min_tokens": 0,
        "n": 1,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "response_format": {"type": "text"},
        "skip_special_tokens": True,
        "stop_token_ids": [],
        "tool_choice": "auto",
        "tools": [],
        "top_k": -1,
        "typical_p": 1,
        "user": "me",
        "metadata": {"a": "b"},
        "an_unknown_name": 5,
    }
    plain = asked(seed=1)
    assert asked(seed=1, **neutral) == plain
    assert asked(seed=1, **dict.fromkeys(WANTED)) == plain
    assert asked(seed=1, top_k=0, guided_json="", logit_bias=[]) == plain


def test_a_field_may_mean_another_thing_to_a_text():
    """A text has its first mark, a conversation what its template says; neither is the other."""
    assert asked(chat=False, add_special_tokens=True).prompt == "Hi"
    for chat, fields, name in (
        (False, {"add_special_tokens": False}, "add_special_tokens"),
        (False, {"messages": ASK}, "messages"),
        (True, {"prompt": "Hi"}, "prompt"),
    ):
        with pytest.raises(Refused) as raised:
            asked(chat=chat, **fields)
        assert raised.value.param == name


def test_a_turn_of_the_assistant_may_say_nothing():
    """Null or not there, as OpenAI's form allows of an assistant; of nobody else."""
    for turn in ({"role": "assistant", "content": None}, {"role": "assistant"}):
        said = asked(messages=[*ASK, turn]).prompt
        assert said[1] == {"role": "assistant", "content": ""}
    for role in ("user", "system"):
        with pytest.raises(Refused, match="expected a string, got null") as raised:
            asked(messages=[{"role": role, "content": None}])
        assert raised.value.param == "messages[0].content"
    for name, value in (("tool_calls", [{}]), ("audio", {"id": "x"}), ("prefix", True)):
        with pytest.raises(Refused, match="served"):
            asked(messages=[{"role": "assistant", "content": None, name: value}])


def test_options_of_streams_are_checked():
    """What is served is the usage at the end."""
    assert asked(stream=True, stream_options={"include_usage": True}).with_usage
    for options in (True, [], "x", {"continuous_usage_stats": True}):
        with pytest.raises(Refused, match="stream_options"):
            asked(stream=True, stream_options=options)
