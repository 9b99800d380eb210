"""What a request asks for: the fields that would change an answer are served or refused by name."""

from __future__ import annotations

import dataclasses
import json

import pytest

from llm.asked import Refused, read
from llm.choosing import Sampling

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
    "enable_thinking": [True],
    "functions": [[{"name": "f"}]],
    "grammar": ["root ::= x"],
    "guided_choice": [["a", "b"]],
    "guided_grammar": ["x"],
    "guided_json": [{"type": "object"}, '{"type": "object"}'],
    "guided_regex": ["[0-9]"],
    "include_stop_str_in_output": [True],
    "json_schema": [{"type": "object"}],
    "length_penalty": [2.0],
    "max_new_tokens": [5],
    "mirostat": [2],
    "modalities": [["text", "audio"]],
    "n_predict": [5],
    "n_probs": [3],
    "no_repeat_ngram_size": [3],
    "num_beams": [4],
    "parameters": [{"max_new_tokens": 5}],
    "prompt": ["Hi"],
    "prompt_logprobs": [0, 1],
    "reasoning_effort": ["high"],
    "repeat_penalty": [1.1],
    "response_format": [{"type": "json_object"}],
    "return_full_text": [True],
    "samplers": [["top_k"]],
    "skip_special_tokens": [False],
    "structured_outputs": [{"json": {}}],
    "suffix": ["x"],
    "tfs_z": [0.9],
    "tool_choice": ["required", {"type": "function"}],
    "tools": [[{"type": "function"}]],
    "top_a": [0.1],
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
    assert asked(seed=1, top_k=0, guided_json="", logit_bias=[], top_logprobs=0) == plain


def test_a_field_may_mean_another_thing_to_a_text():
    """A text has its first mark, a conversation what its template says; neither is the other."""
    assert asked(chat=False, add_special_tokens=True).prompts == ["Hi"]
    for chat, fields, name in (
        (False, {"add_special_tokens": False}, "add_special_tokens"),
        (False, {"messages": ASK}, "messages"),
        (True, {"prompt": "Hi"}, "prompt"),
        (True, {"echo": True}, "echo"),
        (False, {"top_logprobs": 2}, "top_logprobs"),
    ):
        with pytest.raises(Refused) as raised:
            asked(chat=chat, **fields)
        assert raised.value.param == name


def test_a_turn_of_the_assistant_may_say_nothing():
    """Null or not there, as OpenAI's form allows of an assistant; of nobody else."""
    for turn in ({"role": "assistant", "content": None}, {"role": "assistant"}):
        (said,) = asked(messages=[*ASK, turn]).prompts
        assert said[1] == {"role": "assistant", "content": ""}
    for role in ("user", "system"):
        with pytest.raises(Refused, match="expected a string, got null") as raised:
            asked(messages=[{"role": role, "content": None}])
        assert raised.value.param == "messages[0].content"
    for name, value in (("tool_calls", [{}]), ("audio", {"id": "x"}), ("prefix", True)):
        with pytest.raises(Refused, match="served"):
            asked(messages=[{"role": "assistant", "content": None, name: value}])


def test_options_of_streams_are_checked():
    """What is served is the usage at the end, and so far."""
    assert asked(stream=True, stream_options={"include_usage": True}).with_usage
    assert asked(stream=True, stream_options={"continuous_usage_stats": True}).usage_so_far
    for options in (True, [], "x", {"include_usage": 1}):
        with pytest.raises(Refused, match=r"stream_options|include_usage"):
            asked(stream=True, stream_options=options)


def test_how_tokens_are_chosen_is_read_from_all_its_fields():
    """With OpenAI's defaults, and each field in its place."""
    plain = asked(seed=5).sampling
    assert plain == Sampling(1.0, 1.0, 5)
    assert not plain.needs_history
    for fields, wanted in (
        ({"top_k": 40}, {"top_k": 40}),
        ({"min_p": 0.1}, {"min_p": 0.1}),
        ({"presence_penalty": -2}, {"presence": -2.0}),
        ({"frequency_penalty": 0.5}, {"frequency": 0.5}),
        ({"repetition_penalty": 1.1}, {"repetition": 1.1}),
        ({"logit_bias": {"7": -100, "5": 2}}, {"bias": ((5, 2.0), (7, -100.0))}),
        ({"min_tokens": 3}, {"min_tokens": 3}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": 2}),
    ):
        found = asked(seed=5, **fields).sampling
        assert found == dataclasses.replace(plain, **wanted), fields
        assert found.needs_history, fields
    for fields, wanted in (
        ({"stop_token_ids": [4, 9]}, {"ends": (4, 9)}),
        ({"ignore_eos": True}, {"ignore_eos": True}),
    ):
        found = asked(seed=5, **fields).sampling
        assert found == dataclasses.replace(plain, **wanted), fields
        assert not found.needs_history, fields


def test_log_probabilities_of_a_text_are_a_number_and_of_its_prompt_by_echo():
    """0 tells the tokens alone; what is told of the prompt needs both fields."""
    for fields, wanted in (
        ({}, (None, False)),
        ({"logprobs": False}, (None, False)),
        ({"logprobs": 0}, (0, False)),
        ({"logprobs": 5}, (5, False)),
        ({"logprobs": 5, "echo": True}, (5, True)),
        ({"echo": True}, (None, False)),
    ):
        found = asked(chat=False, **fields).sampling
        assert (found.logprobs, found.scores_prompt) == wanted, fields
    assert asked(chat=False, echo=True, max_tokens=0).max_tokens == 0
    for fields in ({"max_tokens": 0}, {"max_tokens": 0, "logprobs": 1}, {"logprobs": True}):
        with pytest.raises(Refused, match="expected an integer"):
            asked(chat=False, **fields)


def test_several_prompts_are_texts_or_lists_of_tokens():
    """A list of tokens is one prompt, and a list of lists several."""
    for prompt, wanted in (
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["a", [3]], ["a", [3]]),
    ):
        assert asked(chat=False, prompt=prompt).prompts == wanted


def test_each_choice_has_a_seed_of_its_own_that_follows_from_the_request_s():
    """The first one has that of the request, and no two requests with near seeds share others."""
    first, other = asked(seed=5, n=4), asked(seed=6, n=4)
    seeds = [[each.sampling_of(n).seed for n in range(4)] for each in (first, other, first)]
    assert seeds[0] == seeds[2]
    assert (seeds[0][0], seeds[1][0]) == (5, 6)
    assert len({*seeds[0], *seeds[1]}) == 8
    assert all(0 <= seed < 1 << 63 for seed in seeds[0])
