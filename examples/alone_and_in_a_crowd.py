"""One prompt alone, then the same prompt among seven others: the same bits."""

from zerokl import LLM

prompt = "The three laws of thermodynamics are"
crowd = [f"Write {n} words about the sea:" for n in range(3, 10)]

with LLM() as llm:
    alone = llm.generate([prompt], max_new_tokens=24, temperature=0, logprobs=True)[0]
    among = llm.generate([*crowd, prompt], max_new_tokens=24, temperature=0, logprobs=True)[-1]
    print(alone.text)
    print(llm.fingerprint)
    print("same tokens:", alone.token_ids == among.token_ids)
    print("same logprob bits:", alone.logprobs == among.logprobs)
