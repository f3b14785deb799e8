"""The engine as a library: no server, no socket, the same bits.

llm = LLM()                                          # SmolLM2-135M-Instruct; or a folder, GGUF file or hub id
alone = llm.generate("The sea is", max_new_tokens=16, logprobs=True)
crowd = llm.generate(["The sea is", *others], max_new_tokens=16, logprobs=True)
assert crowd[0].logprobs == alone.logprobs           # floats, compared with ==
assert llm.score(alone.all_ids, start=len(alone.prompt_ids) - 1)[1:] == alone.logprobs
"""

from zerokl.llm.llm import LLM
from zerokl.llm.output import Output, TopRow
from zerokl.llm.params import Params

__all__ = ["LLM", "Output", "Params", "TopRow"]
