"""LLM: the same tokens as the program, in batches and alone, and every field of an output."""

import math
import pathlib
import shutil
import subprocess
from typing import Any

import pytest
from conftest import PROGRAM, generated, python

import headrace
from headrace import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=40)
PROMPTS = ["Once upon a time", "The king said", "In a wood there lived", "A fox came"]


def text_of(outputs: headrace.RequestOutputs) -> str:
    assert len(outputs) == 1
    return outputs[0].outputs[0].text


def test_greedy_text_is_the_programs(llm: LLM) -> None:
    said = generated("--temperature", "0", "-n", "40", PROMPTS[0])
    (output,) = llm.generate(PROMPTS[0], GREEDY)
    (answer,) = output.outputs
    assert answer.text == said["text"]
    assert answer.token_ids == said["ids"]
    assert answer.finish_reason == said["finish_reason"] == "length"
    assert len(output.prompt_token_ids) == said["usage"]["prompt_tokens"]
    assert (output.prompt, output.finished, answer.stop_reason) == (PROMPTS[0], True, None)


def test_drawn_text_is_the_programs(llm: LLM) -> None:
    said = generated("--temperature", "0.7", "--top-k", "20", "--top-p", "0.9", "-n", "40", "--seed", "5", PROMPTS[1])
    params = SamplingParams(temperature=0.7, top_k=20, top_p=0.9, max_tokens=40, seed=5)
    assert text_of(llm.generate(PROMPTS[1], params)) == said["text"]


def test_defaults_are_the_models(llm: LLM) -> None:
    said = generated("--seed", "5", "-n", "40", PROMPTS[1])
    assert text_of(llm.generate(PROMPTS[1], SamplingParams(seed=5, max_tokens=40))) == said["text"]


def test_a_batch_gives_what_each_prompt_gives_alone(llm: LLM) -> None:
    params = [SamplingParams(seed=i, max_tokens=20 + i) for i in range(4 * len(PROMPTS))]
    prompts = PROMPTS * 4
    batch = llm.generate(prompts, params, use_tqdm=False)
    assert [output.prompt for output in batch] == prompts
    for prompt, one, output in zip(prompts, params, batch, strict=True):
        assert text_of(llm.generate(prompt, one)) == output.outputs[0].text
        assert len(output.outputs[0].token_ids) == one.max_tokens


def test_prompts_may_be_ids_and_dicts(llm: LLM) -> None:
    ids = llm.encode(PROMPTS[0])
    expected = text_of(llm.generate(PROMPTS[0], GREEDY))
    assert text_of(llm.generate(ids, GREEDY)) == expected
    assert text_of(llm.generate({"prompt_token_ids": ids}, GREEDY)) == expected
    both = llm.generate([{"prompt": PROMPTS[0], "cache_salt": "a"}, ids], GREEDY)
    assert [output.outputs[0].text for output in both] == [expected, expected]
    assert both[0].prompt == PROMPTS[0]
    assert both[1].prompt is None
    assert llm.generate([], GREEDY) == []


def test_a_batch_prints_its_texts(llm: LLM) -> None:
    outputs = llm.generate(PROMPTS[:2], GREEDY)
    first, second = (output.outputs[0].text for output in outputs)
    assert str(outputs) == f"{PROMPTS[0]}{first}\n\n{PROMPTS[1]}{second}"
    assert str(outputs[0]) == PROMPTS[0] + first


def test_a_bar_counts_finished_prompts(llm: LLM) -> None:
    bars = []

    class Bar:
        def __init__(self, total: int, desc: str) -> None:
            self.total, self.count, self.closed = total, 0, False
            bars.append(self)

        def update(self, count: int) -> None:
            self.count += count

        def close(self) -> None:
            self.closed = True

    llm.generate(PROMPTS, GREEDY, use_tqdm=Bar)
    with pytest.raises(ValueError, match="temperature"):
        llm.generate(PROMPTS, SamplingParams(temperature=-1), use_tqdm=Bar)
    assert [(bar.total, bar.count, bar.closed) for bar in bars] == [(4, 4, True)]


def test_a_stop_text_ends_the_answer_in_front_of_it(llm: LLM) -> None:
    whole = text_of(llm.generate(PROMPTS[0], GREEDY))
    stop = whole.split()[6]
    for given in (stop, ["no such words", stop]):
        params = SamplingParams(temperature=0, max_tokens=40, stop=given)
        (answer,) = llm.generate(PROMPTS[0], params)[0].outputs
        assert answer.text == whole[: whole.index(stop)]
        assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)


def test_a_stop_text_ends_the_work_on_an_answer(llm: LLM) -> None:
    stop = text_of(llm.generate(PROMPTS[0], GREEDY)).split()[6]
    before = llm.stats["num_tokens"]
    short = SamplingParams(temperature=0, max_tokens=2000, stop=stop, ignore_eos=True)
    long = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)
    llm.generate([PROMPTS[0], PROMPTS[1]], [short, long])
    assert llm.stats["num_tokens"] - before < 400


def test_a_stop_token_ends_the_answer(llm: LLM) -> None:
    ids = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].token_ids
    at = next(i for i in range(5, 40) if ids[i] not in ids[:i])
    params = SamplingParams(temperature=0, max_tokens=40, stop_token_ids=[ids[at]])
    (answer,) = llm.generate(PROMPTS[0], params)[0].outputs
    assert answer.token_ids == ids[: at + 1]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", ids[at])


def test_several_answers_have_seeds_of_their_own(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=7, max_tokens=20)
    (output,) = llm.generate(PROMPTS[0], params)
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    assert len({answer.text for answer in output.outputs}) == 3
    assert output.outputs[0].seed == 7
    for answer in output.outputs:
        assert text_of(llm.generate(PROMPTS[0], SamplingParams(seed=answer.seed, max_tokens=20))) == answer.text


def test_seeds_are_drawn_unless_they_are_given(llm: LLM) -> None:
    params = SamplingParams(max_tokens=30)
    assert len({text_of(llm.generate(PROMPTS[0], params)) for _ in range(4)}) > 1


def test_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=1, seed=3, max_tokens=20, logprobs=3, prompt_logprobs=2)
    (output,) = llm.generate(PROMPTS[0], params)
    (answer,) = output.outputs
    assert answer.logprobs is not None
    assert len(answer.logprobs) == 20
    total, drawn = 0.0, []
    for token, row in zip(answer.token_ids, answer.logprobs, strict=True):
        ranked = sorted((one.rank, one.logprob) for one in row.values() if one.rank is not None)
        assert [rank for rank, _ in ranked] == [1, 2, 3]
        assert [value for _, value in ranked] == sorted((value for _, value in ranked), reverse=True)
        assert row[token].decoded_token == llm.decode([token], False)
        total += row[token].logprob
        drawn.append(row[token].rank or 4)
    assert answer.cumulative_logprob == pytest.approx(total)
    assert max(drawn) > 1
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    for token, row in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert row is not None
        assert len(row) >= 2
        assert row[token].logprob < 0


def test_prompt_logprobs_are_those_of_the_same_tokens_as_output(llm: LLM) -> None:
    (said,) = llm.generate(PROMPTS[0], GREEDY)
    answer = said.outputs[0]
    ids = said.prompt_token_ids + answer.token_ids
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    rows = llm.generate(ids, params)[0].prompt_logprobs
    assert rows is not None
    again = [row[token].logprob for row, token in zip(rows[1:], ids[1:], strict=True) if row is not None]
    assert math.fsum(again[-len(answer.token_ids) :]) == pytest.approx(answer.cumulative_logprob, abs=1e-3)


def test_a_banned_token_does_not_come(llm: LLM) -> None:
    ids = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].token_ids
    params = SamplingParams(temperature=0, max_tokens=40, logit_bias={ids[3]: -math.inf})
    other = llm.generate(PROMPTS[0], params)[0].outputs[0].token_ids
    assert other[:3] == ids[:3]
    assert ids[3] not in other


def test_no_maximum_means_until_the_context_is_full() -> None:
    with LLM(max_model_len=64) as small:
        params = SamplingParams(max_tokens=None, ignore_eos=True, seed=1)
        (output,) = small.generate(PROMPTS[0], params)
    assert output.outputs[0].finish_reason == "length"
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 64


def test_metrics(llm: LLM) -> None:
    (output,) = llm.generate(PROMPTS[0], GREEDY)
    metrics = output.metrics
    assert metrics is not None
    assert metrics.first_token_time is not None
    assert metrics.last_token_time is not None
    assert metrics.arrival_time < metrics.first_token_time < metrics.last_token_time
    assert metrics.num_forwards == 40


def test_the_prefix_cache_counts(llm: LLM) -> None:
    prompt = " ".join(PROMPTS * 12)
    llm.generate(prompt, SamplingParams(max_tokens=2))
    (again,) = llm.generate(prompt + " and", SamplingParams(max_tokens=2))
    assert again.num_cached_tokens >= 64
    (other,) = llm.generate({"prompt": prompt, "cache_salt": "own"}, SamplingParams(max_tokens=2))
    assert other.num_cached_tokens == 0


def test_chat_is_the_programs(llm: LLM) -> None:
    said = generated("--chat", "--temperature", "0", "-n", "30", PROMPTS[3])
    messages = [{"role": "user", "content": PROMPTS[3]}]
    params = SamplingParams(temperature=0, max_tokens=30)
    one = llm.chat(messages, params)
    assert text_of(one) == said["text"]
    assert len(one[0].prompt_token_ids) == said["usage"]["prompt_tokens"]
    two = llm.chat([messages, [{"role": "user", "content": PROMPTS[2]}]], params)
    assert [len(two), two[0].outputs[0].text] == [2, said["text"]]


def test_parts_of_texts_are_joined(llm: LLM) -> None:
    parts: list[Any] = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    by_parts = llm.chat_prompt([{"role": "user", "content": parts}])
    assert by_parts == llm.chat_prompt([{"role": "user", "content": "a\nb"}])
    image = {"type": "image_url", "image_url": {"url": "x"}}
    with pytest.raises(ValueError, match=r"a message has the part {'type': 'image_url'.*, expected {'type': 'text'"):
        llm.chat_prompt([{"role": "user", "content": [image]}])


def test_tools_need_a_template_that_shows_them(llm: LLM) -> None:
    messages, tools = [{"role": "user", "content": "a"}], [{"type": "function", "function": {"name": "f"}}]
    with pytest.raises(NotImplementedError, match="tools is given, expected None: the chat template shows none"):
        llm.chat_prompt(messages, tools=tools)
    shown = llm.chat_prompt(messages, tools=tools, chat_template="{{ tools[0].function.name }}")
    assert shown["prompt"] == "f"


def test_a_conversation_is_messages(llm: LLM) -> None:
    for wrong in ("hi", ["hi", "ho"], [["hi"]]):
        with pytest.raises(ValueError, match=r"messages is .*, expected a list of {'role': ..., 'content': ...}"):
            llm.chat(wrong)  # type: ignore[arg-type]


def test_a_message_spells_no_special_token(llm: LLM) -> None:
    spelled = llm.decode([llm.info["eos_token_ids"][0]], skip_special_tokens=False)
    prompt = llm.chat_prompt([{"role": "user", "content": f"a {spelled} b"}])
    plain = llm.chat_prompt([{"role": "user", "content": "a  b"}])
    count = [each["prompt_token_ids"].count(llm.info["eos_token_ids"][0]) for each in (prompt, plain)]
    assert spelled in prompt["prompt"]
    assert count[0] == count[1]


def test_texts_and_ids(llm: LLM) -> None:
    assert llm.decode(llm.encode("Käse, 猫 and 🦊")) == "Käse, 猫 and 🦊"
    assert set(llm.info) >= {"device", "strategy", "max_model_len", "max_num_seqs", "vocab_size"}
    assert llm.info["kv_cache_dtype"] == llm.info["dtype"]
    assert llm.stats["num_running"] == llm.stats["num_waiting"] == 0


def test_quantised_weights_and_threads() -> None:
    with LLM(quantize="Q8_0", kv_cache_dtype="int8", threads=1, max_num_seqs=2, deterministic=True) as small:
        said = generated("--quantize", "q8_0", "--kv-cache-dtype", "int8", "--temperature", "0", "-n", "20", PROMPTS[0])
        assert text_of(small.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=20))) == said["text"]
        assert small.info["max_num_seqs"] == 2
        assert small.info["weights"] == "Q8_0"
        assert small.info["kv_cache_dtype"] == "int8"
        assert repr(small).startswith("<headrace.LLM of ")
    assert repr(small).endswith(", closed>")


def test_a_quantised_file_is_not_quantised_again(tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "a.gguf")
    subprocess.run([PROGRAM, "quantize", "fairy-hybrid", "-o", file, "--to", "q8_0"], check=True, capture_output=True)
    with pytest.raises(ValueError, match=r"quantize is q4_k_m, expected none: .*a.gguf is quantised already"):
        LLM(file, quantize="q4_k_m")
    with LLM(file) as llm:
        assert llm.info["weights"] == "Q8_0"


def test_random_weights_need_a_config_alone(tmp_path: pathlib.Path) -> None:
    config = pathlib.Path(__file__).parent.parent.parent / "tests" / "golden" / "qwen3" / "config.json"
    shutil.copy(config, tmp_path)
    params = SamplingParams(temperature=0, max_tokens=8)
    texts = set()
    for seed in (1, 1, 2):
        with LLM(tmp_path, random_weights=seed) as llm:
            texts.add(tuple(llm.generate([1, 2, 3], params)[0].outputs[0].token_ids))
    assert len(texts) == 2
    with pytest.raises(headrace.Error, match="weights"):
        LLM(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"temperature": "hot"}, "temperature is 'hot', expected a number"),
        ({"temperature": -1}, "temperature is -1, expected 0 to 100"),
        ({"max_tokens": 0}, "max_tokens is 0, expected 1 to"),
        ({"max_tokens": True}, "max_tokens is True, expected an integer"),
        ({"n": 0}, "n is 0, expected 1 or more"),
        ({"stop": [""]}, "a stop text is empty"),
        ({"stop": [1]}, "stop is \\[1\\], expected a list of str"),
        ({"stop_token_ids": [99999]}, "99999"),
        ({"logit_bias": {"a": 1}}, "logit_bias has 'a': 1, expected a token id and a number"),
        ({"logprobs": 1000}, "^logprobs is 1000, expected 0 to 128"),
        ({"n": 2, "trace": True}, "expected"),
        ({"diffusion": headrace.DiffusionParams(threshold=0.5)}, "threshold"),
        ({"ignore_eos": True, "ban_end_tokens": True}, "expected at most one"),
    ],
)
def test_a_parameter_is_refused_by_name(llm: LLM, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        llm.generate([PROMPTS[1], PROMPTS[0]], [SamplingParams(), SamplingParams(**arguments)])
    assert llm.stats["num_running"] == llm.stats["num_waiting"] == 0


@pytest.mark.parametrize(
    ("prompts", "sentence"),
    [
        ("", "the prompt is empty"),
        (3, "prompts is 3, expected a str, token ids"),
        ([PROMPTS[0], 3.5], "prompts has 3.5, expected"),
        ({"text": "a"}, "prompts has a dict with 'text', expected"),
        ([[1, 99999]], "99999"),
        ("word " * 5000, "context"),
    ],
)
def test_a_prompt_is_refused(llm: LLM, prompts: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        llm.generate(prompts, GREEDY)


def test_habits_from_elsewhere_get_a_hint(llm: LLM) -> None:
    assert len(llm.generate("a", GREEDY, lora_request=None)) == 1
    with pytest.raises(ValueError, match=r"generate has no argument 'temperature'; SamplingParams\(temperature"):
        llm.generate("a", temperature=0)
    with pytest.raises(ValueError, match=r"'prompt_token_ids'; prompts takes token ids, too"):
        llm.generate(prompt_token_ids=[[1]], prompts=[])
    with pytest.raises(AttributeError, match=r"LLM has no attribute 'get_tokenizer': encode, decode and chat_prompt"):
        llm.get_tokenizer()  # type: ignore[operator]
    assert not hasattr(llm, "nonsense")


def test_texts_and_ids_that_are_none_are_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"text is \['a'\], expected a str"):
        llm.encode(["a"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is no Unicode, expected one without surrogates"):
        llm.generate("a\ud800")
    with pytest.raises(ValueError, match=r"token_ids has -1, expected 0 to \d+"):
        llm.decode([-1])


def test_a_seed_of_minus_one_is_none() -> None:
    assert SamplingParams(seed=-1).seed is None


def test_kinds_and_diffusion_are_of_their_types() -> None:
    with pytest.raises(ValueError, match="output_kind is 'delta', expected a RequestOutputKind"):
        SamplingParams(output_kind="delta")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"diffusion is {'threshold': 0.9}, expected DiffusionParams or None"):
        SamplingParams(diffusion={"threshold": 0.9})  # type: ignore[arg-type]


def test_wrong_parameters_are_refused_where_they_are_made() -> None:
    for wrong, sentence in (
        ({"n": 0.8}, "n is 0.8, expected an integer"),
        ({"stop": 5}, "stop is 5, expected"),
        ({"logprobs": True}, "logprobs is True, expected an integer"),
        ({"temperature": -1}, "temperature is -1, expected 0 to 100"),
        ({"diffusion": headrace.DiffusionParams(accept="best")}, "accept is 'best', expected 'confidence'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            SamplingParams(**wrong)  # type: ignore[arg-type]


def test_modules_are_loaded_when_they_are_used() -> None:
    done = python("import headrace, sys\nassert 'headrace.ops' not in sys.modules\nprint(headrace.ops.SPAN_FIELDS[0])")
    assert (done.stdout, done.stderr) == ("q_off\n", "")
    assert {"ops", "integrations"} <= set(dir(headrace))


def test_parameters_of_a_batch_are_counted(llm: LLM) -> None:
    with pytest.raises(ValueError, match="sampling_params has 1 entries, expected one for each of 2 prompts"):
        llm.generate(PROMPTS[:2], [GREEDY])
    with pytest.raises(ValueError, match=r"sampling_params is {'n': 1}, expected SamplingParams or a list of them"):
        llm.generate(PROMPTS[0], {"n": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flags", "kind", "sentence"),
    [
        ({"thread": 1}, ValueError, "LLM has no argument 'thread'; did you mean 'threads'\\?"),
        (
            {"gpu_memory_utilization": 0.5},
            ValueError,
            "'gpu_memory_utilization'; kv_cache_memory_bytes is the memory of",
        ),
        (
            {"max_model_len": 10**9},
            MemoryError,
            r"a smaller max_model_len, or a smaller cache \(kv_cache_memory_bytes\)",
        ),
        ({"tensor_parallel_size": 2}, NotImplementedError, "LLM: tensor_parallel_size is 2, expected 1"),
        ({"device": "tpu"}, ValueError, "device 'tpu' is unknown"),
        ({"dtype": "half"}, ValueError, "dtype is 'half', expected 'auto', 'float32' or 'bfloat16'"),
        ({"quantize": "q3"}, ValueError, "quantize is 'q3', expected 'q8_0'"),
        ({"max_model_len": 1}, ValueError, "max_model_len is 1, expected 2 or more"),
        ({"max_num_seqs": -1}, ValueError, "max_num_seqs is -1, expected 1 or more"),
        ({"max_num_seqs": 0}, ValueError, "max_num_seqs is 0, expected 1 or more"),
        ({"random_weights": True}, ValueError, "random_weights is True, expected their seed, an integer"),
        ({"enable_lora": True}, ValueError, "LLM has no argument 'enable_lora'; adapter is the directory of a LoRA"),
        ({"page_size": 3}, ValueError, "3"),
        ({"threads": 0}, ValueError, "threads is 0, expected 1 to 1024"),
        ({"strategy": "magic"}, ValueError, "magic"),
        ({"merge_weight": 0.5}, ValueError, "merge_weight is 0.5, expected none"),
        ({"model": "fary-hybrid"}, headrace.Error, "did you mean 'fairy-hybrid'\\?"),
        ({"model": "no-owner/no-model"}, headrace.Error, "no-owner/no-model: no such model directory"),
        ({"revision": "main"}, ValueError, "revision is 'main', expected None: fairy-hybrid is not a model of"),
        ({"adapter": "/nonexistent"}, headrace.Error, "/nonexistent"),
    ],
)
def test_a_flag_is_refused_by_name(flags: dict[str, Any], kind: type, sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        LLM(**flags)


@pytest.mark.parametrize(
    ("arguments", "kind", "sentence"),
    [
        ({"temprature": 1}, ValueError, "SamplingParams has no argument 'temprature'; did you mean 'temperature'\\?"),
        ({"bad_words": ["a"]}, NotImplementedError, "SamplingParams: bad_words is \\['a'\\], expected None"),
    ],
)
def test_a_parameter_of_others_is_refused(arguments: dict[str, Any], kind: type, sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        SamplingParams(**arguments)
    with pytest.raises(ValueError, match=r"DiffusionParams has no argument 'treshold'; did you mean 'threshold'\\?"):
        headrace.DiffusionParams(treshold=1)  # type: ignore[call-arg]


def test_neutral_parameters_of_vllm_are_taken() -> None:
    assert SamplingParams(detokenize=True, best_of=None, bad_words=[]) == SamplingParams()  # type: ignore[call-arg]


def test_a_closed_llm_says_so() -> None:
    closed = LLM()
    closed.close()
    closed.close()
    with pytest.raises(headrace.Error, match="this LLM is closed"):
        closed.generate("a")


def test_diffusion_text_is_the_programs(diffusion_llm: LLM) -> None:
    said = generated("-m", "fairy-diffusion", "--temperature", "0", "-n", "32", "--threshold", "0.5", PROMPTS[0])
    params = SamplingParams(temperature=0, max_tokens=32, diffusion=headrace.DiffusionParams(threshold=0.5))
    (output,) = diffusion_llm.generate(PROMPTS[0], params)
    assert output.outputs[0].text == said["text"]
    assert output.metrics is not None
    assert output.metrics.num_forwards == said["forwards"] < 32
    with pytest.raises(ValueError, match="steps"):
        diffusion_llm.generate(PROMPTS[0], SamplingParams(diffusion=headrace.DiffusionParams(steps=0)))


def test_a_trace_holds_every_decision(diffusion_llm: LLM) -> None:
    (output,) = diffusion_llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=32, trace=True))
    (answer,) = output.outputs
    assert answer.steps is not None
    assert [step.step for step in answer.steps] == list(range(1, len(answer.steps) + 1))
    decided = {position: token for step in answer.steps for position, token, _ in step.decided}
    first = len(output.prompt_token_ids)
    assert [decided[first + i] for i in range(len(answer.token_ids))] == answer.token_ids
    assert all(0 <= confidence <= 1 for step in answer.steps for _, _, confidence in step.decided)
