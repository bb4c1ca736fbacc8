"""LLM on a GPU: the tokens of the program, in any batch, and its memory.

Run on a machine with a GPU, with a package that has the CUDA part: pytest -m gpu python/tests/gpu
"""

import pathlib

import pytest

import headrace
from headrace import LLM, SamplingParams

if not pathlib.Path("/dev/nvidiactl").exists():
    pytest.skip("no CUDA device", allow_module_level=True)

from conftest import generated

pytestmark = pytest.mark.gpu
PROMPTS = ["Once upon a time", "The king said to his", "A fox and a cat"]
GREEDY = SamplingParams(temperature=0, max_tokens=40)


def test_the_package_has_the_cuda_part() -> None:
    assert headrace.build_info()["cuda"] is True


@pytest.mark.parametrize("model", ["fairy-hybrid", "fairy-diffusion"])
def test_texts_are_the_programs_in_any_batch(model: str) -> None:
    with LLM(model, device="cuda", deterministic=True) as llm:
        assert llm.info["device"].startswith("cuda")
        together = [output.outputs[0].text for output in llm.generate(PROMPTS, GREEDY)]
        alone = [llm.generate(prompt, GREEDY)[0].outputs[0].text for prompt in PROMPTS]
    by_program = [
        generated(model, "--device", "cuda", "--temperature", "0", "-n", "40", "-p", prompt)["text"]
        for prompt in PROMPTS
    ]
    assert together == alone == by_program


def test_a_gpu_is_freed() -> None:
    torch = pytest.importorskip("torch")
    for _ in range(2):  # what the first one allocates for good is there in the second round
        before = torch.cuda.mem_get_info()[0]
        with LLM(device="cuda") as llm:
            llm.generate("a", GREEDY)
            used = before - torch.cuda.mem_get_info()[0]
        left = before - torch.cuda.mem_get_info()[0]
    assert used > 100 << 20
    assert left < 64 << 20
